"""Takes Segue's webhook and asks those who may decide: each in a direct message of Slack, or by mail. A link decides in
the name of one person, so it goes to that person alone. Needs Python and nothing else; docs/approvals.md explains it.

WEBHOOK_SECRET  as Segue has it
PEOPLE          a JSON file: {"sara": {"slack": "U012AB3CD", "mail": "sara@acme.example"}}
SLACK_TOKEN     of a bot with the scope chat:write; people without "slack", and all without a token, get a mail
SMTP_HOST, SMTP_PORT, SMTP_USER, SMTP_PASSWORD, MAIL_FROM
PORT            of this receiver on 127.0.0.1, 9000
"""

import base64
import hmac
import json
import os
import smtplib
import ssl
import time
import urllib.request
from collections import OrderedDict
from email.message import EmailMessage, Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

KEYS = [base64.b64decode(each.removeprefix("whsec_")) for each in os.environ["WEBHOOK_SECRET"].split()]
PEOPLE = json.loads(Path(os.environ.get("PEOPLE", "people.json")).read_text("utf-8"))
SLACK_TOKEN = os.environ.get("SLACK_TOKEN", "")
SLACK_API = os.environ.get("SLACK_API", "https://slack.com/api")
MAX_BYTES, MAX_SENT, MAX_CHARS, TIMEOUT_S, WINDOW_S = 100_000, 10_000, 2500, 10, 300
sent: OrderedDict[tuple[str, str], None] = OrderedDict()  # event and person: an event may come again


def is_genuine(headers: Message, body: bytes) -> bool:
    event_id, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not at.isdecimal() or abs(time.time() - int(at)) > WINDOW_S:
        return False
    given = headers.get("webhook-signature", "").split()
    digests = (base64.b64encode(hmac.digest(key, f"{event_id}.{at}.".encode() + body, "sha256")) for key in KEYS)
    return any(hmac.compare_digest(b"v1," + digest, each.encode()) for digest in digests for each in given)


def told(data: dict) -> tuple[str, str]:
    """The question in a line, and the call if the webhook sends content (WEBHOOK_CONTENT=true)."""
    args = json.dumps(data["args"], ensure_ascii=False, indent=1) if data.get("args") else ""
    return f"{data['user']} asks for a yes: {data['tool']}", args[:MAX_CHARS]


def slack_blocks(data: dict, url: str) -> list[dict]:
    def text(said: str) -> str:
        return said.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

    question, call = told(data)
    until = f"Until {data['expires_at'][:16].replace('T', ' ')} UTC. The link is yours alone and works once."
    button = {
        "type": "button",
        "style": "primary",
        "text": {"type": "plain_text", "text": "Look and decide"},
        "url": url,
    }
    return [
        {"type": "section", "text": {"type": "mrkdwn", "text": f"*{text(question)}*"}},
        *([{"type": "section", "text": {"type": "mrkdwn", "text": f"```{text(call)}```"}}] if call else []),
        {"type": "context", "elements": [{"type": "mrkdwn", "text": until}]},
        {"type": "actions", "elements": [button]},
    ]


def send_slack(member: str, data: dict, url: str) -> None:
    message = {"channel": member, "text": told(data)[0], "blocks": slack_blocks(data, url)}
    headers = {"Authorization": f"Bearer {SLACK_TOKEN}", "Content-Type": "application/json; charset=utf-8"}
    request = urllib.request.Request(f"{SLACK_API}/chat.postMessage", json.dumps(message).encode(), headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        answer = json.load(response)
    if not answer["ok"]:
        raise OSError(f"Slack: {answer.get('error')}")


def send_mail(address: str, data: dict, url: str) -> None:
    question, call = told(data)
    mail = EmailMessage()
    mail["Subject"], mail["To"] = " ".join(question.split()), address
    mail["From"] = os.environ.get("MAIL_FROM", "segue@localhost")
    mail.set_content(f"{question}\n\n{call}\n\nLook and decide, until {data['expires_at'][:16]} UTC:\n{url}\n")
    with smtplib.SMTP(os.environ["SMTP_HOST"], int(os.environ.get("SMTP_PORT", "25")), timeout=TIMEOUT_S) as smtp:
        smtp.ehlo()
        if smtp.has_extn("starttls"):
            smtp.starttls(context=ssl.create_default_context())
        if "SMTP_USER" in os.environ:
            smtp.login(os.environ["SMTP_USER"], os.environ["SMTP_PASSWORD"])
        smtp.send_message(mail)


def ask(event_id: str, data: dict) -> None:
    """Raises OSError if a person could not be reached: Segue sends the event again, without those who were reached."""
    for link in data.get("links", ()):
        person = PEOPLE.get(link["user"])
        if person is None or (event_id, link["user"]) in sent:
            continue
        if SLACK_TOKEN and "slack" in person:
            send_slack(person["slack"], data, link["url"])
        else:
            send_mail(person["mail"], data, link["url"])
        sent[event_id, link["user"]] = None
        while len(sent) > MAX_SENT:
            sent.popitem(last=False)


class Receiver(BaseHTTPRequestHandler):
    timeout = TIMEOUT_S

    def do_POST(self) -> None:
        body = self.rfile.read(min(int(self.headers.get("content-length", 0)), MAX_BYTES))
        genuine = is_genuine(self.headers, body)
        status, event = (204, json.loads(body)) if genuine else (400, {})
        if event.get("type") == "approval.requested":
            try:
                ask(self.headers["webhook-id"], event["data"])
            except (OSError, ValueError) as error:
                print(f"not sent: {error}", flush=True)
                status = 502
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "9000"))), Receiver)
    print(f"receives at http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
