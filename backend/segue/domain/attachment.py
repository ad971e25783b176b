"""Files that users attach, as the stores return them and the API sends them."""

from dataclasses import dataclass
from typing import Annotated, Final

from segue.domain.doc import doc

READ_ATTACHMENT: Final = "read_attachment"  # the tool that a file's text is the result of; only the engine calls it
MAX_ATTACHMENTS: Final = 10  # of a message
SHOWN_BYTES: Final = 4000  # of the text of each, in the turn that it comes with


@dataclass(frozen=True, slots=True)
class Attached:
    """What a message says of a file that it carries."""

    id: Annotated[str, doc("Begins with `att_`.")]
    name: Annotated[str, doc("What the user's file is called.")]
    media_type: Annotated[str, doc("What its content is, whatever its name says.")]
    size_bytes: Annotated[int, doc("The size of the file.")]


@dataclass(frozen=True, slots=True)
class Attachment(Attached):
    """A file of a session."""

    summary: Annotated[str, doc("What is in it, in one line.")]
