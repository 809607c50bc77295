# One image for CPU and CUDA: PyPI's torch for Linux x86-64 brings its own CUDA libraries, and runs
# on the CPU where there is no GPU. With an index of CPU builds beside PyPI the image is 4 GB
# smaller: docker build --build-arg PIP_EXTRA_INDEX_URL=<index of CPU builds> -t gearshift .
#
#   docker run --rm -p 8000:8000 -v gearshift-cache:/cache gearshift --mode compiled
#   docker run --rm -p 8000:8000 -v gearshift-cache:/cache --gpus all gearshift --mode compiled
#
# Only /cache and /tmp are written to: add --read-only --tmpfs /tmp where that is wanted. An engine
# kills 10 s after it asked to stop; with --stop-timeout 40 every admitted request gets its answer
# first (server.drain_timeout_s).

FROM python:3.11-slim-bookworm AS dependencies
ARG PIP_EXTRA_INDEX_URL
WORKDIR /src
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
# Without the code, which changes more often than these gigabytes.
COPY pyproject.toml constraints.txt ./
RUN python -c "import tomllib; project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
    print(*project['dependencies'], *project['optional-dependencies']['demo'], sep='\n')" \
    > requirements.txt \
    && pip install --no-cache-dir -c constraints.txt -r requirements.txt

FROM dependencies AS package
COPY README.md ./
COPY server server
COPY models models
COPY report report
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist .

FROM python:3.11-slim-bookworm
# Inductor (CPU) calls g++ and openssl, Triton (CUDA) gcc, which comes with g++. Python.h, which
# both include, is in the base image.
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ openssl \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home gearshift \
    && install -d -m 0700 -o gearshift -g gearshift /cache
COPY --from=dependencies /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
RUN --mount=type=bind,from=package,source=/dist,target=/dist \
    pip install --no-cache-dir --no-deps /dist/*.whl
COPY config.toml /app/config.toml
WORKDIR /app
# By number: Kubernetes cannot tell that a name is not root.
USER 10001:10001
# XDG_CACHE_HOME is where downloaded weights go.
ENV PYTHONUNBUFFERED=1 \
    XDG_CACHE_HOME=/cache \
    GEARSHIFT_COMPILE__CACHE_DIR=/cache/gearshift \
    GEARSHIFT_SERVER__HOST=0.0.0.0
VOLUME /cache
EXPOSE 8000
# Live, not ready: a server that is compiling is healthy. Orchestrators ask /readyz for traffic.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s CMD \
    ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/livez', timeout=2)"]
# In exec form `serve` is process 1 and gets SIGTERM itself.
ENTRYPOINT ["serve"]
