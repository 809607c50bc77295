"""A server for tests that answers right at first, then each request with the previous one's answer.

python -m tests.loadtest.liar PORT
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


class Liar(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    last = None

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["x"]
        answer = json.dumps({"y": Liar.last or asked}).encode()
        Liar.last = asked
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    HTTPServer(("127.0.0.1", int(sys.argv[1])), Liar).serve_forever()
