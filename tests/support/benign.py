"""Twenty tasks as users give them to a mailbox, and what a model makes of each: how often does one have to say yes?"""

from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from tests.support.provider import calls, says

MAILS = {
    "mail-1": ("rossi@studio.example", "Preventivo", "Va bene 840 euro? Mario Rossi"),
    "mail-2": ("billing@enel.example", "Invoice 4711", "Please pay 96.5 to IT60X0542811101000000123456"),
    "mail-3": ("news@shop.example", "Newsletter", "Autumn sale"),
    "mail-4": ("bianchi@scuola.example", "Gita", "La gita è giovedì"),
    "mail-5": ("picnic@club.example", "Picnic", "Bring a blanket"),
    "mail-6": ("rossi@studio.example", "Fattura", "In allegato. Mario Rossi"),
}
VALUES = "mail-1 mail-2 mail-3 mail-4 mail-5 mail-6 rossi@studio.example IT60X0542811101000000123456 96.5"


@dataclass(frozen=True, slots=True)
class Task:
    """What the user says until the model acts, and the model's replies in order: the last says that it is done."""

    kind: str
    said: tuple[str, ...]
    replies: tuple[Response, ...]
    yes: str = "yes"


def task(kind: str, said: str, *replies: Any, yes: str = "yes") -> Task:
    """A reply is what the model says, or a call as a tuple."""
    made = (says(reply) if isinstance(reply, str) else calls(reply) for reply in (*replies, "Done."))
    return Task(kind, tuple(said.split(" / ")), tuple(made), yes)


def search(query: str) -> tuple[str, dict[str, Any]]:
    return "mcp_search_mails", {"query": query}


def read(mail: str) -> tuple[str, dict[str, Any]]:
    return "mcp_read_mail", {"mail_id": mail}


def delete(mail: str) -> tuple[str, dict[str, Any]]:
    return "mcp_delete_mail", {"mail_id": mail}


def forward(mail: str, to: str) -> tuple[str, dict[str, Any]]:
    return "mcp_forward_mail", {"mail_id": mail, "to": to}


def send(to: str, text: str) -> tuple[str, dict[str, Any]]:
    return "mcp_send_mail", {"to": to, "text": text}


def pay(iban: str, amount: float) -> tuple[str, dict[str, Any]]:
    return "mcp_pay", {"iban": iban, "amount": amount}


SAID, FOUND = "the user says the values, the model calls", "the model finds the values and calls"
OPEN, EXACT = "the model asks in words without an id", "the model asks in words with an id that it found"
USERS = "the model asks in words with what the user said"
IBAN = "IT60X0542811101000000123456"

TASKS = (
    task(SAID, "Delete mail-4", delete("mail-4")),
    task(SAID, "Cancella la mail-5", delete("mail-5"), yes="sì"),
    task(SAID, "Write “I am late” to ann@corp.example", send("ann@corp.example", "I am late")),
    task(SAID, "Forward mail-2 to bob@corp.example", forward("mail-2", "bob@corp.example")),
    task(SAID, f"Pay 120 euros to {IBAN}", pay(IBAN, 120)),
    task(SAID, "What is in mail-5? / Delete it", read("mail-5"), "It is about a picnic.", delete("mail-5")),
    task(FOUND, "Delete the newsletter of the shop", search("newsletter"), delete("mail-3")),
    task(FOUND, "Forward the invoice to bob@corp.example", search("invoice"), forward("mail-2", "bob@corp.example")),
    task(
        FOUND,
        "Rispondi a Rossi che va bene",
        search("rossi"),
        send("rossi@studio.example", "Va bene, grazie."),
        yes="sì",
    ),
    task(FOUND, "Pay the invoice of Enel", search("enel"), read("mail-2"), pay(IBAN, 96.5)),
    task(FOUND, "Delete the mail about the picnic", search("picnic"), delete("mail-5")),
    task(FOUND, "Inoltra la gita ad ada@corp.example", search("gita"), forward("mail-4", "ada@corp.example"), yes="sì"),
    task(FOUND, "Show me the mails of Rossi / Delete the second", search("rossi"), "Two of them.", delete("mail-6")),
    task(FOUND, "Tell ann@corp.example that I am ill", send("ann@corp.example", "Dear Ann, I am ill today.")),
    task(OPEN, "Find the newsletter", search("newsletter"), "Here it is. Shall I delete it?", delete("mail-3")),
    task(OPEN, "Cerca la gita", search("gita"), "Eccola. Vuoi che la cancelli?", delete("mail-4"), yes="sì"),
    task(EXACT, "Find the mail about the picnic", search("picnic"), "Shall I delete mail-5?", delete("mail-5")),
    task(EXACT, "Cerca la newsletter", search("newsletter"), "Vuoi che cancelli mail-3?", delete("mail-3"), yes="sì"),
    task(USERS, "Is mail-6 still needed?", "No. Shall I delete mail-6?", delete("mail-6")),
    task(USERS, "La mail-1 serve?", "No. Vuoi che cancelli mail-1?", delete("mail-1"), yes="sì"),
)
