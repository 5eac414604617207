"""A server that speaks chat completions: what it answers is decided call by call."""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def answer(text="\\boxed{7}", *, finish="stop", read=9, sampled=4, **more):
    return 200, {"model": "m-2026", "system_fingerprint": "fp1", "usage": {"prompt_tokens": read, "completion_tokens": sampled},
                 "choices": [{"message": {"role": "assistant", "content": text, **more}, "finish_reason": finish}]}


@contextlib.contextmanager
def serving(reply):
    """A server whose answer to a body is `reply(body, number of the call)`; yields its address and the calls."""
    calls = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self._send(200, {"data": [{"id": "m"}]} if self.path == "/v1/models" else {})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            calls.append((body, self.headers.get("Authorization")))
            self._send(*reply(body, len(calls)))

        def _send(self, status, document):
            data = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", calls
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
