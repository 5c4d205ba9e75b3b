"""The smallest application for gunicorn."""

PAGE = b"0123456789abcdef" * 4


def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(PAGE)))])
    return [PAGE]
