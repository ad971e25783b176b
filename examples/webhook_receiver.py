"""Prints the events of Segue's webhook that are signed and recent. docs/webhooks.md says what they are."""

import base64
import hmac
import os
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

KEY = base64.b64decode(os.environ["WEBHOOK_SECRET"].removeprefix("whsec_"))
MAX_AGE_S = 300


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        event_id, at = self.headers["webhook-id"], self.headers["webhook-timestamp"]
        digest = base64.b64encode(hmac.digest(KEY, f"{event_id}.{at}.".encode() + body, "sha256")).decode()
        given = self.headers["webhook-signature"].split(" ")
        is_signed = any(hmac.compare_digest(each, f"v1,{digest}") for each in given)
        is_genuine = is_signed and abs(time.time() - int(at)) < MAX_AGE_S
        if is_genuine:
            print(event_id, body.decode(), flush=True)
        self.send_response(204 if is_genuine else 400)
        self.end_headers()


HTTPServer(("127.0.0.1", 9000), Receiver).serve_forever()
