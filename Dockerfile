# One image for CPU and CUDA: PyPI's torch for Linux x86-64 brings its own CUDA libraries, and runs
# on the CPU where there is no GPU. With a wheel index of CPU builds the image is 4 GB smaller:
#   docker build --build-arg PIP_INDEX_URL=<index of CPU builds> -t gearshift .
#
#   docker run --rm -p 8000:8000 -v gearshift-cache:/cache gearshift --mode compiled
#   docker run --rm -p 8000:8000 -v gearshift-cache:/cache --gpus all gearshift --mode compiled

FROM python:3.11-slim-bookworm AS build
ARG PIP_INDEX_URL
WORKDIR /src
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
# The dependencies first: they change less often than the code.
COPY pyproject.toml constraints.txt README.md ./
RUN mkdir -p server/api server/link server/engine models \
    && touch server/__init__.py models/__init__.py \
    && pip install --no-cache-dir -c constraints.txt '.[demo]' \
    && pip uninstall -y gearshift
COPY server server
COPY models models
RUN pip install --no-cache-dir --no-deps .

FROM python:3.11-slim-bookworm
# Inductor (CPU) needs a C++ compiler, Triton (CUDA) a C compiler; both need Python.h, which this
# base image has, and libgomp.
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ libgomp1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home gearshift \
    && install -d -m 0700 -o gearshift -g gearshift /cache
COPY --from=build /opt/venv /opt/venv
COPY config.toml /app/config.toml
WORKDIR /app
USER gearshift
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    GEARSHIFT_COMPILE__CACHE_DIR=/cache/gearshift \
    GEARSHIFT_SERVER__HOST=0.0.0.0
VOLUME /cache
EXPOSE 8000
# Live, not ready: a server that is compiling is healthy. Orchestrators ask /readyz for traffic.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s CMD \
    ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/livez', timeout=2)"]
# In exec form `serve` is process 1 and gets SIGTERM itself.
ENTRYPOINT ["serve"]
