# Two images, one command each process: docker run millrace:local inference --home /var/lib/millrace
#
#   --target slim   every process but engine and training
#   --target torch  these two and `init` as well. --build-arg TORCH=cuda (the default) or cpu, whose wheels need the address of
#                   their index: --build-arg PIP_EXTRA_INDEX_URL=...
#
# Only what is in deploy/requirements is installed, with the hashes that stand there.
ARG PYTHON_DIGEST=@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b
FROM python:3.11-slim-bookworm${PYTHON_DIGEST} AS base

# ── What is installed: from the locks, checked against them, and without what no process reads ──────────────────────────────
FROM base AS packages
RUN apt-get update -qq && apt-get install -qq --yes --no-install-recommends binutils >/dev/null
WORKDIR /build
COPY deploy/requirements deploy/requirements
COPY deploy/packages.py deploy/packages.py
RUN python -m venv --without-pip /opt/millrace \
 && python -m pip --python /opt/millrace/bin/python install --quiet --no-cache-dir --no-compile --require-hashes \
      --requirement deploy/requirements/slim.txt
COPY pyproject.toml README.md millrace.py ./
COPY commands commands
COPY contracts contracts
COPY engines engines
COPY examples examples
COPY migrations migrations
COPY pipelines pipelines
COPY policy policy
COPY rewards rewards
COPY runtime runtime
COPY services services
COPY weights weights
# The wheel is built with the setuptools of the lock, not with whichever is newest.
RUN python -m venv /opt/build \
 && /opt/build/bin/pip install --quiet --no-cache-dir --require-hashes --requirement deploy/requirements/build.txt \
 && /opt/build/bin/pip wheel --quiet --no-deps --no-index --no-build-isolation --wheel-dir dist . \
 && python -m pip --python /opt/millrace/bin/python install --quiet --no-compile --no-deps --no-index dist/*.whl \
 && /opt/millrace/bin/python deploy/packages.py check deploy/requirements/slim.txt \
 && /opt/millrace/bin/python deploy/packages.py list deploy/requirements/slim.txt > /opt/millrace/packages.cdx.json \
 && /opt/millrace/bin/python deploy/packages.py prune \
 && cd /opt/millrace/lib/python3.11/site-packages && rm -rf hf_xet \
 && find numpy -path '*/tests/*' -type f ! -name _natype.py ! -name __init__.py -delete

# ── What it runs on: Python without what installs packages ─────────────────────────────────────────────────────────────────
FROM base AS root
# tini forwards signals: as process 1, Python would ignore SIGTERM until it installs a handler.
RUN apt-get update -qq \
 && apt-get install -qq --yes --no-install-recommends tini >/dev/null \
 && useradd --uid 10001 --create-home --home-dir /srv/millrace millrace \
 && install --directory --owner millrace --group millrace /var/lib/millrace \
 && rm -rf /usr/local/lib/python3.11/site-packages /usr/local/lib/python3.11/ensurepip /usr/local/lib/python3.11/idlelib \
      /usr/lib/python3/dist-packages /usr/lib/python3.11/ensurepip /usr/share/python-wheels /var/lib/apt /var/cache /usr/lib/apt \
      /usr/share/doc /usr/share/man /usr/share/locale /usr/share/perl /usr/lib/x86_64-linux-gnu/perl-base /usr/bin/perl* \
      /usr/lib/x86_64-linux-gnu/perl /usr/lib/x86_64-linux-gnu/libperl* /usr/lib/x86_64-linux-gnu/gconv /usr/lib/x86_64-linux-gnu/libapt* \
      /usr/lib/python3.11/lib2to3 /usr/lib/python3.11/pydoc_data /usr/local/lib/python3.11/lib2to3 /usr/local/lib/python3.11/pydoc_data \
      /usr/lib/x86_64-linux-gnu/libgnutls* /usr/lib/x86_64-linux-gnu/libunistring* /usr/lib/x86_64-linux-gnu/libp11-kit* \
      /usr/lib/x86_64-linux-gnu/libdb-* /var/lib/dpkg/info /usr/bin/apt* /usr/local/bin/pip* /usr/bin/pip* \
 && find /usr/lib /usr/local/lib -name __pycache__ -prune -exec rm -rf {} +

FROM scratch AS slim
COPY --from=root / /
COPY --from=packages /opt/millrace /opt/millrace
# Python keeps here what it compiled, outside the image: a restart of the container, and each health check, finds it.
ENV PATH=/opt/millrace/bin:/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 PYTHONPYCACHEPREFIX=/srv/millrace/.cache/python
USER millrace
# Compile the loops of the delta codec once for all containers.
RUN python -B -c "from weights.warm_up import warm_up; warm_up()"
WORKDIR /var/lib/millrace
VOLUME /var/lib/millrace
EXPOSE 8400 8401 8402 8403 9464
ENTRYPOINT ["tini", "--", "millrace"]
CMD ["--help"]

FROM slim AS torch
ARG TORCH=cuda
ARG PIP_EXTRA_INDEX_URL=
USER root
RUN --mount=type=bind,from=packages,source=/build/deploy,target=/build/deploy \
    --mount=type=bind,from=packages,source=/opt/build/lib/python3.11/site-packages/pip,target=/build/pip/pip \
    PYTHONPATH=/build/pip python -m pip install --quiet --no-cache-dir --no-compile --require-hashes \
      --requirement /build/deploy/requirements/torch-${TORCH}.txt \
 && python /build/deploy/packages.py check /build/deploy/requirements/slim.txt /build/deploy/requirements/torch-${TORCH}.txt \
 && python /build/deploy/packages.py list /build/deploy/requirements/slim.txt /build/deploy/requirements/torch-${TORCH}.txt \
      > /opt/millrace/packages.cdx.json
USER millrace
