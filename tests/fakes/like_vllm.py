"""A server that speaks the endpoints of vLLM that are used, and samples with the embedded engine: a small real one."""

import contextlib
import copy
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import torch
from safetensors.torch import load_file

from rollbook.models.weights import load_into, weight_hash
from rollbook.records import Request
from rollbook.rollouts.engines.embedded import EmbeddedEngine


class LikeVllm:
    """`spoil` changes a reply before it is sent, `delay_s` keeps it back; `deaf` names paths that are answered without effect.

    `calls` holds (path, query, body) in order.
    """

    def __init__(self, policy, *, spoil=None, delay_s=0.0, deaf=(), rows=8):
        self.tokenizer, self.decoder = policy.tokenizer, copy.deepcopy(policy.decoder)
        self.engine = EmbeddedEngine(stop_ids=frozenset(), dtype=torch.float32, decode=policy.tokenizer.whole, kv_bytes=1 << 28)
        self.spoil, self.delay_s, self.deaf, self.rows = spoil, delay_s, set(deaf), rows
        self.calls, self.streams, self.done = [], {}, {}
        self.version, self.taken, self.paused, self.over = "default", None, False, False
        self.lock = threading.RLock()
        self.sampling = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self):
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                fake.answer(self, None)

            def do_POST(self):
                fake.answer(self, json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}"))

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()
        self.sampling.start()
        return self

    def __exit__(self, *_):
        self.over = True
        self.http.shutdown()
        self.http.server_close()

    def answer(self, handler, body):
        parts = urlsplit(handler.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        self.calls.append((parts.path, query, body))
        method = getattr(self, "on_" + parts.path.strip("/").replace("inference/v1/", "").replace("/", "_"), None)
        status, reply = (404, {"error": "no such path"}) if method is None else (200, None)
        try:
            if parts.path in self.deaf:
                reply = {}
            elif method is not None:
                reply = method(query, body)
        except Exception as error:
            status, reply = 500, {"error": str(error)}
        time.sleep(self.delay_s if parts.path.endswith("generate") else 0.0)
        if self.spoil is not None and status == 200:
            reply = self.spoil(parts.path, reply)
        data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
        with contextlib.suppress(OSError):
            handler.send_response(status)
            handler.send_header("Content-Length", str(len(data)))
            handler.end_headers()
            handler.wfile.write(data)

    def on_health(self, query, body):
        return {}

    def on_pause(self, query, body):
        with self.lock:                             # between two tokens
            self.paused = True
        return {"status": "paused"}

    def on_resume(self, query, body):
        self.paused = False
        return {"status": "resumed"}

    def on_start_weight_update(self, query, body):
        self.taken = None
        return {}

    def on_update_weights(self, query, body):
        tensors = load_file(body["update_info"]["path"])
        load_into(self.decoder, tensors)
        self.taken = {"hash": weight_hash(tensors.items()), "tensors": len(tensors), "missing": []}
        return {}

    def on_finish_weight_update(self, query, body):
        with self.lock:
            self.version = body["weight_version"]
            self.engine.load(self.decoder, int(self.version))
        return {}

    def on_weight_info(self, query, body):
        return {"weight_version": self.version}

    def on_collective_rpc(self, query, body):
        assert body["method"] == "rollbook_taken"
        return {"results": [json.dumps(self.taken)]}

    def on_reset_prefix_cache(self, query, body):
        with self.lock:
            for stream in self.streams.values():
                if stream.batch.rows:
                    stream._recompute(self.engine.ready())
        return {"success": True}

    def on_abort_requests(self, query, body):
        keys = frozenset(name.removeprefix("generate-tokens-") for name in body["request_ids"])
        with self.lock:
            for stream in self.streams.values():
                self._tell(stream.cancel(keys))
        return {}

    def on_generate(self, query, body):
        asked = body["sampling_params"]
        if "prompt_logprobs" in asked:
            ids = body["token_ids"]
            with self.lock:
                logps = self.engine.logprobs(ids, 1)
            return {"choices": [], "prompt_logprobs": [None, *({str(token): {"logprob": logp}} for token, logp in
                                                               zip(ids[1:], logps, strict=True))]}
        request = Request(key=body["request_id"], prompt_ids=tuple(body["token_ids"]), max_tokens=asked["max_tokens"],
                          temperature=asked["temperature"], top_p=asked["top_p"], top_k=asked["top_k"], min_p=asked["min_p"],
                          seed=asked["seed"], stop_ids=tuple(asked["stop_token_ids"]), stop=tuple(asked.get("stop", ())))
        ended = threading.Event()
        with self.lock:
            self.done[request.key] = [ended, None]
            kind = (request.temperature, request.top_p, request.top_k, request.min_p)
            if kind not in self.streams:
                self.streams[kind] = self.engine.stream(rows=self.rows, longest_prompt=64, longest_answer=64)
            self.streams[kind].submit([request])
        ended.wait()
        return self._choice(self.done.pop(request.key)[1], body)

    def _sample(self):
        while not self.over:
            with self.lock, torch.no_grad():
                busy = [stream for stream in self.streams.values() if stream.busy] if not self.paused else []
                for stream in busy:
                    self._tell(stream.advance())
            time.sleep(0.0002 if busy else 0.002)

    def _tell(self, completions):
        for one in completions:
            self.done[one.key][1] = one
            self.done[one.key][0].set()

    def _choice(self, done, body):
        spans = []
        for place, version in enumerate(done.versions):
            if not spans or spans[-1]["version"] != str(version):
                spans.append({"version": str(version), "start": place, "end": place})
            spans[-1]["end"] = place + 1
        finish = {"end_of_turn": "stop", "stop_string": "stop", "length": "length", "cancelled": "abort"}[done.stop_reason]
        content = [{"token": f"token_id:{token}", "logprob": logp, "top_logprobs": []}
                   for token, logp in zip(done.token_ids, done.logps, strict=True)]
        choice = {"index": 0, "token_ids": list(done.token_ids), "finish_reason": finish, "stop_reason": done.stopped_by,
                  "logprobs": {"content": content}, "weight_versions": spans}
        if done.support is not None:
            ids = iter(done.support.ids)
            choice["sampling_mask"] = [[next(ids) for _ in range(count)] for count in done.support.counts]
        if body["output_mode"] == "text":
            choice["text"] = self.tokenizer.whole(done.token_ids)
        return {"request_id": body["request_id"], "choices": [choice]}
