# queuectl and its workers. compose.yaml runs this image; docs/how-to/use-docker.md explains both.
FROM python:3.13-slim

# The packages for a bucket: --build-arg EXTRAS=[s3], [gcs] or [azure].
ARG EXTRAS=

WORKDIR /app
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN --mount=type=cache,target=/root/.cache/pip pip install --disable-pip-version-check ".$EXTRAS"
COPY test.sh ./
COPY examples/queuectl-session.sh examples/

# Jobs run as this user. A new volume at /data gets the owner of this folder.
RUN useradd --create-home --uid 1000 casque && install --directory --owner=casque /data
USER casque
VOLUME /data
ENV CASQUE_STORE=sqlite:////data/queue.db PYTHONUNBUFFERED=1

# As a list, without a shell: the supervisor is PID 1, gets SIGTERM and reaps orphans.
CMD ["queuectl", "worker", "start", "--foreground"]
