"""Who waits for whom while files are read: a user for their own, and for nobody else's."""

import asyncio

from segue.config import Settings
from segue.db.engine import Database
from segue.domain.ids import utc_now
from segue.tools.attachment_store import AT_ONCE, Attachments


async def test_files_of_one_user_are_taken_one_after_the_other_and_anothers_between_them(settings: Settings) -> None:
    assert settings.database_url is not None
    database = Database(settings.database_url.get_secret_value())
    files, entered = Attachments(database, settings, utc_now), list[str]()

    async def enter(owner: str) -> None:
        async with files.place(owner):
            entered.append(owner)

    async with files.place("ada"):
        waiting = [asyncio.create_task(enter("ada")) for _ in range(AT_ONCE)]
        await asyncio.create_task(enter("bob"))
        assert entered == ["bob"]
    await asyncio.gather(*waiting)
    assert entered == ["bob", *["ada"] * AT_ONCE]
    await database.close()
