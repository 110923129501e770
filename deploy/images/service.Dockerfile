# syntax=docker/dockerfile:1
# Budget service, Kafka worker and exporter. Build from the root of the checkout:
#   docker build -f deploy/images/service.Dockerfile -t evertally/service:0.1.0 .
# Pin both bases by digest where you build: --build-arg BUILD_BASE=...@sha256:... --build-arg RUN_BASE=...
ARG BUILD_BASE=debian:12.11-slim
ARG RUN_BASE=gcr.io/distroless/python3-debian12:nonroot

FROM ${BUILD_BASE} AS build
# the same /usr/bin/python3.11 as in the final stage, so that the environment's link holds there
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-pip python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY bootstrap.lock deploy/images/requirements-service.lock ./
RUN python3 -m pip install --no-cache-dir --target /uv --require-hashes -r bootstrap.lock \
    && /uv/bin/uv venv --python /usr/bin/python3.11 /opt/evertally \
    && VIRTUAL_ENV=/opt/evertally /uv/bin/uv pip sync --no-cache --compile-bytecode --require-hashes requirements-service.lock
COPY pyproject.toml README.md LICENSE CHANGELOG.md SECURITY.md ./
COPY counters counters
COPY accountants accountants
COPY pipelines pipelines
RUN VIRTUAL_ENV=/opt/evertally /uv/bin/uv pip install --no-cache --no-deps --no-build-isolation --compile-bytecode . \
    && mkdir -p /empty

FROM ${RUN_BASE}
COPY --from=build /opt/evertally /opt/evertally
COPY deploy/images/stage_keys.py /opt/evertally/libexec/stage_keys.py
COPY --from=build --chown=65532:65532 /empty /state
COPY --from=build --chown=65532:65532 /empty /keys
ENV XDG_CACHE_HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
USER 65532:65532
WORKDIR /state
ENTRYPOINT ["/opt/evertally/bin/evertally"]
CMD ["--help"]
