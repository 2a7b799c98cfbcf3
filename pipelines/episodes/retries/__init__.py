"""Several tries of one request: which answer a later try replaced."""
