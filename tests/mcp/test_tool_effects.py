import pytest
from mcp_types import ToolAnnotations

from segue.mcp.tool_effects import effect_of

READS = ToolAnnotations(read_only_hint=True)
DESTROYS = ToolAnnotations(destructive_hint=True)
ADDS = ToolAnnotations(destructive_hint=False)


@pytest.mark.parametrize(
    ("name", "hints", "effect"),
    [
        ("add", READS, "read_only"),
        ("delete_all", READS, "read_only"),
        ("add", DESTROYS, "destructive"),
        ("send_email", ADDS, "write"),
        ("send_email", ToolAnnotations(title="Send a mail"), "destructive"),
        ("send_email", None, "destructive"),
        ("mail.send", None, "destructive"),
        ("deleteFile", None, "destructive"),
        ("SENDSms", None, "destructive"),
        ("transfer-money", None, "destructive"),
        ("post_tweet", None, "destructive"),
        ("get_post", None, "write"),
        ("list_transfers", None, "write"),
        ("searchDeleted", None, "write"),
        ("postpone_meeting", None, "write"),
        ("create_note", None, "write"),
        ("发送", None, "write"),
        ("", None, "write"),
    ],
)
def test_annotations_say_what_a_tool_does_and_its_name_where_there_are_none(
    name: str, hints: ToolAnnotations | None, effect: str
) -> None:
    assert effect_of(name, hints) == effect
