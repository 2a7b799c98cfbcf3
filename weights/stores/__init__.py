"""Where versions lie: a folder, a bucket, a web server."""
