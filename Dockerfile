# One image for every process; the command says which: docker run millrace:local inference --home /var/lib/millrace
FROM python:3.11-slim-bookworm

# tini forwards signals: as process 1, Python would ignore SIGTERM until it installs a handler.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends tini \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --create-home millrace \
 && install --directory --owner millrace --group millrace /var/lib/millrace

WORKDIR /app

# Dependencies first: they change less often than the code. torch from PyPI brings CUDA. For its CPU wheels, give the address
# of their index with --build-arg PIP_EXTRA_INDEX_URL=...
ARG PIP_EXTRA_INDEX_URL=
COPY pyproject.toml constraints.txt ./
RUN python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
      > /tmp/requirements.txt \
 && pip install --no-cache-dir --constraint constraints.txt --requirement /tmp/requirements.txt

COPY README.md millrace.py ./
COPY commands commands
COPY contracts contracts
COPY examples examples
COPY migrations migrations
COPY pipelines pipelines
COPY policy policy
COPY rewards rewards
COPY runtime runtime
COPY services services
COPY weights weights
RUN pip install --no-cache-dir --no-deps --constraint constraints.txt --editable .

USER millrace
# Compile the loops of the delta codec once for all containers.
RUN python -c "from weights.warm_up import warm_up; warm_up()"
VOLUME /var/lib/millrace
EXPOSE 8400 8401 8402 8403 9464
ENTRYPOINT ["tini", "--", "millrace"]
CMD ["--help"]
