"""Asks every model that is configured one short question."""

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urlsplit

from segue.around.doctor.report import Diagnosis
from segue.config import Settings
from segue.domain.errors import AppError
from segue.domain.telemetry import unobserved, untraced
from segue.models.chat_models import open_model
from segue.models.model import ChatModel
from segue.models.model_settings import MODEL_SETTINGS
from segue.models.refusals import outcome_of, what_to_mend

MODEL_S = 10.0


async def look_at_models(settings: Settings, report: Diagnosis) -> dict[str, Any]:
    times = ("llm_timeout_s", "llm_first_token_timeout_s", "llm_idle_timeout_s")
    bounded = {**dict.fromkeys(times, MODEL_S), "llm_max_retries": 0}
    async with AsyncExitStack() as stack:
        asked = settings.model_copy(update=bounded)
        names = [name for name in MODEL_SETTINGS if getattr(settings, name)]
        models = [
            await open_model(stack, asked, getattr(asked, name), name.upper(), observe=unobserved, span=untraced)
            for name in names
        ]
        main, *_ = await asyncio.gather(*(_probe_model(model, settings, report) for model in models))
    return main


async def _probe_model(model: ChatModel, settings: Settings, report: Diagnosis) -> dict[str, Any]:
    where = urlsplit(settings.access_to(model.provider)[1] or model.provider.default_url).hostname or "?"
    latency_ms, outcome = None, "answered"
    started = time.monotonic()
    try:
        await model.probe()
        latency_ms = round((time.monotonic() - started) * 1000, 1)
    except AppError as error:
        outcome = outcome_of(error)
        why = f"nothing within {MODEL_S:g} s." if error.code == "model_timeout" else error.detail
        what = f"{model.name} at {where} does not answer ({outcome}): {why}"
        report.problem("model", what, what_to_mend(error, model.setting, model.provider))
    told = {"answers": latency_ms is not None, "outcome": outcome, "latency_ms": latency_ms}
    return {"name": model.name, "at": where, **told}
