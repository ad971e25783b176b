"""Whether an error says that a tool's own credentials were refused, which no second try can mend. Pure; `run.py` asks.

Only what HTTP clients and the usual APIs say: a bare 401 may count mails, a parser complains of an invalid token too.
"""

import re
from typing import Final

_REFUSED: Final = re.compile(
    r"""
      \b (?:HTTP(?:/[\d.]+)? | status(?:[ _]code)? | error[ _]code) [\s:="']* 401 \b
    | \b 401 \W+ (?:client[ ]error\W+)? unauthori[sz]ed \b
    | \A \W* unauthori[sz]ed \W* (?: \Z | [:.,] )
    | \b (?:unauthenticated | invalid_token | invalid_api_key | authentication_error) \b
    | \b (?:invalid|expired|missing|incorrect|bad|revoked|no[ ]valid)[ ]
         (?: api[ -]?key | (?:access|auth|oauth|bearer|refresh)[ ]token | (?:\w+[ ])?credentials ) \b
    | \b (?: api[ -]?key | (?:access|auth|oauth|bearer|refresh)[ ]token )[ ]
         (?:(?:is|was|has|has[ ]been)[ ])? (?:not[ ]valid|invalid|expired|revoked) \b
    | \b authentication[ ](?:failed|required|error) \b
    """,
    re.IGNORECASE | re.VERBOSE,
)


def are_refused(error: str) -> bool:
    return _REFUSED.search(error) is not None
