"""`python -m report OUT IN.json...`: several reports as one, and their page."""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic import ValidationError

from report import render

if len(sys.argv) < 3:
    sys.exit("usage: python -m report OUT IN.json...  (writes OUT.json, OUT.md and OUT.html)")
try:
    joined = render.join([render.read(Path(name)) for name in sys.argv[2:]])
except (OSError, ValidationError) as error:
    sys.exit(f"report: {error}")
for file in render.write(joined, Path(sys.argv[1])):
    sys.stdout.write(f"{file}\n")
