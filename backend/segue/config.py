"""The settings, read once from the environment and `.env` by the commands and alembic, and passed down from there.

`.env.example` holds every field with the same default; `make check` compares the two.
"""

import base64
import os
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import unquote, urlsplit

import orjson
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ImportString,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from segue.domain.agent import PROVIDERS, ModelProvider, ParallelCalls, ProviderApi, Rounds, ToolCalls, provider_and_id
from segue.domain.identity import is_loopback
from segue.domain.ids import known_zone
from segue.domain.plan import Confirm, ConfirmWords, Planning
from segue.domain.redaction import header_secrets, is_recognisable
from segue.secret_files import read_secrets
from segue.users.prices import ANSWER_TOKENS, read_prices

_OWN_TO_A_REQUEST = frozenset({"model", "messages", "input", "tools", "stream"})
_HEADER_NAME = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_HEADER_VALUE = re.compile(r"[ -~]*")
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^\s/]+", re.IGNORECASE)
_PASSWORD_IN_URL = re.compile(r"(?:://[^/:@]*:|[?&]password=)([^/@&]+)(?=@|&|$)")
_WEBHOOK_SECRET_BYTES = (24, 64)
_KEY_BYTES = 32
_HOW_TO_MAKE_ONE = "Make one: echo whsec_$(openssl rand -base64 32)"
_BASE_URLS = tuple(provider.base_url.lower() for provider in PROVIDERS.values())

# The settings that name a model. What they name may be the same, or nothing.
MODEL_SETTINGS: Final = ("llm_model", "llm_small_model", "llm_fallback_model")

# The bounds are those of times and numbers in PostgreSQL and Redis.
Seconds = Annotated[float, Field(gt=0, le=31_622_400, allow_inf_nan=False)]
PositiveCount = Annotated[int, Field(ge=1, le=2_147_483_647)]
DayCount = Annotated[int, Field(ge=1, le=36_500)]
KeptDays = Annotated[int, Field(ge=0, le=36_500)]  # 0 keeps for ever
Bytes = Annotated[int, Field(ge=1, le=2**53)]
OptionalLimit = Annotated[int, Field(ge=0, le=2**53)]  # 0 means no limit


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_file=".env", env_ignore_empty=True, extra="ignore", frozen=True)

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    auth: Literal["none", "api_key", "jwt"] = "none"
    allow_anonymous: bool = False
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    jwt_jwks_url: str | None = None
    jwt_key: SecretStr | None = None
    jwt_issuer: str | None = None
    jwt_audience: str | None = None
    jwt_groups_claim: str = "groups"
    openwebui_jwt_secret: Annotated[SecretStr, Field(min_length=32)] | None = None
    console: bool = True
    metrics_public: bool = False
    worker_metrics_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    otel_exporter_otlp_endpoint: str | None = None
    otel_capture_content: bool = False
    webhook_url: SecretStr | None = None
    webhook_secret: SecretStr | None = None
    webhook_content: bool = False
    limit_requests_per_minute: OptionalLimit = 0
    limit_turns_per_minute: OptionalLimit = 0
    limit_concurrent_turns: OptionalLimit = 0
    limit_tokens_per_day: OptionalLimit = 0
    limit_cost_per_day: Annotated[Decimal, Field(ge=0)] = Decimal(0)
    limit_total_tokens_per_day: OptionalLimit = 0
    limit_total_cost_per_day: Annotated[Decimal, Field(ge=0)] = Decimal(0)
    cors_origins: Annotated[tuple[str, ...], NoDecode] = ()
    max_body_bytes: Bytes = 1_048_576
    max_door_body_bytes: Bytes = 8_388_608
    request_read_timeout_s: Seconds = 30
    keep_alive_s: Seconds = 5
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(str.lower)] = "info"
    log_format: Literal["console", "json"] = "console"
    shutdown_grace_s: Seconds = 20
    secrets_dir: Path | None = None

    data_dir: Path = Path(".segue")
    database_url: SecretStr | None = None
    database_pooler: Literal["none", "session", "transaction"] = "none"
    redis_url: SecretStr | None = None
    migrate_on_start: bool = True

    openai_api_key: SecretStr | None = None
    openai_base_url: str | None = None
    anthropic_api_key: SecretStr | None = None
    anthropic_base_url: str | None = None
    google_api_key: SecretStr | None = None
    google_base_url: str | None = None
    llm_model: str = "gpt-5-mini"
    llm_api: ProviderApi = "auto"
    llm_small_model: str | None = None
    llm_fallback_model: str | None = None
    llm_temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    llm_max_output_tokens: PositiveCount | None = None
    llm_reasoning_effort: str | None = None
    llm_structured_output: Literal["auto", "off"] = "auto"
    llm_extra_body: Annotated[Mapping[str, Any], NoDecode] = {}
    llm_extra_headers: Annotated[Mapping[str, SecretStr], NoDecode] = {}
    llm_timeout_s: Seconds = 300
    llm_first_token_timeout_s: Seconds = 120
    llm_idle_timeout_s: Seconds = 30
    llm_max_retries: Annotated[int, Field(ge=0)] = 2
    llm_max_answer_bytes: Annotated[int, Field(ge=10_000)] = 1_000_000
    llm_max_tools: Annotated[int, Field(ge=16, le=128)] = 40
    llm_tool_description_chars: Annotated[int, Field(ge=20)] = 1024
    show_reasoning: bool = False
    embedding_model: str | None = None
    prices_file: Path | None = None

    agents_config: Path = Path("agents.toml")
    instructions_file: Path | None = None
    planning: Planning = "auto"
    confirm: Confirm = "destructive"
    confirm_words: ConfirmWords = "shown"
    language_dir: Path | None = None
    before_call: ImportString[Callable[..., object]] | None = None
    plan_ttl_s: PositiveCount = 86_400

    turn_timeout_s: Seconds = 900
    max_rounds: Rounds = 50
    max_tool_calls: ToolCalls = 100
    max_parallel_calls: ParallelCalls = 8
    turn_lease_s: Seconds = 30
    worker_concurrency: PositiveCount = 64
    history_limit: PositiveCount = 80
    context_token_budget: Annotated[int, Field(ge=1000)] = 24_000
    short_term_memory_ttl: PositiveCount = 3600
    time_zone: Annotated[str, AfterValidator(known_zone)] = "UTC"

    mcp_config: Path = Path("mcp.json")
    mcp_token_key: SecretStr | None = None
    public_url: str | None = None
    tool_timeout_s: Seconds = 30
    tool_result_ttl_days: DayCount = 30
    tool_result_preview_chars: PositiveCount = 500
    tool_result_inline_bytes: Bytes = 2000
    tool_result_max_bytes: Bytes = 10_000_000
    tool_result_session_bytes: Bytes = 200_000_000
    attachment_max_bytes: Bytes = 20_000_000
    attachment_user_bytes: Bytes = 1_000_000_000
    session_ttl_days: KeptDays | None = None
    turn_details_ttl_days: KeptDays = 0
    usage_ttl_days: KeptDays = 0
    audit_ttl_days: KeptDays = 400
    tool_failure_threshold: PositiveCount = 3
    tool_failure_duration_s: Seconds = 300
    tool_fleet_threshold: PositiveCount = 3
    disabled_tools: Annotated[tuple[str, ...], NoDecode] = ()
    web_search_provider: Literal["ddgs", "searxng", "tavily", "none"] = "ddgs"
    searxng_url: str | None = None
    tavily_api_key: SecretStr | None = None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 (pydantic's, which warns and knows no SECRETS_DIR)
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Files in SECRETS_DIR are asked last."""
        given = init_settings, env_settings, dotenv_settings
        folder = next((found["secrets_dir"] for source in given if (found := source()).get("secrets_dir")), None)
        secrets = {name.lower(): value for name, value in read_secrets(folder and Path(folder)).items()}
        known = {name: value for name, value in secrets.items() if name in cls.model_fields}
        return *given, InitSettingsSource(settings_cls, known)

    @field_validator("cors_origins", "allowed_hosts", "disabled_tools", mode="before")
    @classmethod
    def _split_commas(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator(
        *_BASE_URLS, "searxng_url", "jwt_jwks_url", "public_url", "otel_exporter_otlp_endpoint", "webhook_url"
    )
    @classmethod
    def _is_a_url(cls, value: str | SecretStr | None) -> str | SecretStr | None:
        url = value.get_secret_value() if isinstance(value, SecretStr) else value
        if url is not None and not _leads_somewhere(url):
            raise ValueError("has to be a URL, such as https://api.example.com/v1")
        return value

    @field_validator("database_url", "redis_url")
    @classmethod
    def _leads_to_a_server(cls, value: SecretStr | None, field: ValidationInfo) -> SecretStr | None:
        if value is not None:
            from segue.db import urls  # noqa: PLC0415 (its libraries are slow to import)

            check = urls.check_postgres if field.field_name == "database_url" else urls.check_redis
            check(value.get_secret_value())
        return value

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        if not all(map(_ORIGIN.fullmatch, values)):
            raise ValueError("has to be origins, such as https://app.example.com, without a path or a / at the end")
        return values

    @field_validator("data_dir")
    @classmethod
    def _is_or_becomes_a_folder(cls, value: Path) -> Path:
        found = next(path for path in (value.expanduser(), *value.expanduser().parents) if os.path.lexists(path))
        if not found.is_dir():
            raise ValueError(f"has to be a folder, and {found} is none")
        return value

    @field_validator("secrets_dir")
    @classmethod
    def _is_a_folder(cls, value: Path | None) -> Path | None:
        if value is not None and not value.expanduser().is_dir():
            raise ValueError(f"has to be a folder of files, and {value} is none")
        return value

    @field_validator("llm_extra_body", "llm_extra_headers", mode="before")
    @classmethod
    def _read_json_object(cls, value: object) -> object:
        try:
            value = orjson.loads(value) if isinstance(value, str) else value
        except orjson.JSONDecodeError as error:
            raise ValueError(f"has to be a JSON object, and is no JSON: {error.msg} at {error.pos}") from None
        if not isinstance(value, Mapping):
            raise ValueError('has to be a JSON object, such as {"name": "value"}')  # noqa: TRY004 (pydantic's own)
        return value

    @field_validator("llm_extra_body")
    @classmethod
    def _leaves_the_request_alone(cls, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if taken := sorted(_OWN_TO_A_REQUEST & body.keys()):
            raise ValueError(f"cannot set {', '.join(taken)}: Segue writes these itself. Leave them out")
        return body

    @field_validator("llm_extra_headers")
    @classmethod
    def _can_be_sent(cls, headers: Mapping[str, SecretStr]) -> Mapping[str, SecretStr]:
        for name, value in headers.items():
            if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value.get_secret_value()):
                raise ValueError(f"has a header that cannot be sent, {name!r}: names and values are plain ASCII texts")
        return headers

    @model_validator(mode="after")
    def _anonymous_only_on_loopback(self) -> Self:
        if self.auth == "none" and not self.allow_anonymous and not is_loopback(self.host):
            raise ValueError(
                f"AUTH=none on HOST={self.host} would let anyone on the network in. Set AUTH=api_key and make a key "
                "with `segue keys create --user NAME`, or AUTH=jwt; or use HOST=127.0.0.1; or set ALLOW_ANONYMOUS=true "
                "if something in front decides who may call it."
            )
        return self

    @model_validator(mode="after")
    def _tokens_can_be_checked(self) -> Self:
        if self.auth != "jwt":
            return self
        needed = {
            "JWT_ISSUER (the `iss` of its tokens)": self.jwt_issuer,
            "JWT_AUDIENCE (the `aud` that names this service)": self.jwt_audience,
            "JWT_JWKS_URL or JWT_KEY (what signatures are checked with)": self.jwt_jwks_url or self.jwt_key,
        }
        if missing := [name for name, value in needed.items() if not value]:
            raise ValueError(f"AUTH=jwt also needs {', '.join(missing)}")
        if self.jwt_jwks_url and self.jwt_key:
            raise ValueError("JWT_JWKS_URL and JWT_KEY are both set: which of the two counts? Set one")
        return self

    @model_validator(mode="after")
    def _webhook_is_signed(self) -> Self:
        secrets = self.webhook_secrets
        if self.webhook_url is not None and not secrets:
            raise ValueError("WEBHOOK_URL needs WEBHOOK_SECRET. " + _HOW_TO_MAKE_ONE)
        if not all(_WEBHOOK_SECRET_BYTES[0] <= len(secret) <= _WEBHOOK_SECRET_BYTES[1] for secret in secrets):
            raise ValueError(
                "WEBHOOK_SECRET is none: it has to be whsec_ and 24 to 64 bytes in Base64. " + _HOW_TO_MAKE_ONE
            )
        return self

    @model_validator(mode="after")
    def _tokens_can_be_sealed(self) -> Self:
        if self.mcp_token_key is not None and not (self.mcp_token_keys and all(map(_is_key, self.mcp_token_keys))):
            raise ValueError("MCP_TOKEN_KEY has to be 32 bytes in Base64. Make one: openssl rand -base64 32")
        return self

    @model_validator(mode="after")
    def _search_provider_is_reachable(self) -> Self:
        if self.web_search_provider == "searxng" and not self.searxng_url:
            raise ValueError("WEB_SEARCH_PROVIDER=searxng needs SEARXNG_URL")
        if self.web_search_provider == "tavily" and not self.tavily_api_key:
            raise ValueError("WEB_SEARCH_PROVIDER=tavily needs TAVILY_API_KEY")
        return self

    @model_validator(mode="after")
    def _one_result_fits_its_session(self) -> Self:
        if self.tool_result_session_bytes < self.tool_result_max_bytes:
            raise ValueError(
                f"TOOL_RESULT_SESSION_BYTES={self.tool_result_session_bytes} is less than one result may take "
                f"(TOOL_RESULT_MAX_BYTES={self.tool_result_max_bytes})"
            )
        return self

    @model_validator(mode="after")
    def _embeddings_have_an_endpoint(self) -> Self:
        if self.embedding_model and self.openai_api_key is None and self.openai_base_url is None:
            raise ValueError("EMBEDDING_MODEL needs OPENAI_API_KEY or OPENAI_BASE_URL")
        return self

    @model_validator(mode="after")
    def _models_have_providers(self) -> Self:
        for setting in MODEL_SETTINGS:
            model: str | None = getattr(self, setting)
            is_needed = bool(model) and setting != "llm_model" and self.model_configured
            if fault := self.fault_of_model(model or "", is_needed=is_needed):
                raise ValueError(f"{setting.upper()}={model} {fault}")
        return self

    @model_validator(mode="after")
    def _prices_are_known(self) -> Self:
        prices = read_prices(self.prices_file)
        names = [getattr(self, setting) for setting in MODEL_SETTINGS] if self.model_configured else []
        for name in filter(None, names):
            if self.cost_cap and prices.of(name) is None:
                raise ValueError(f"{self.cost_cap} needs a price of {name} in the file PRICES_FILE")
        return self

    @property
    def cost_cap(self) -> str | None:
        """Returns the name of the setting that caps what a day may cost, if one does."""
        names = ("limit_cost_per_day", "limit_total_cost_per_day")
        return next((name.upper() for name in names if getattr(self, name)), None)

    @property
    def answer_tokens(self) -> int | None:
        """Returns what an answer may take. With a cap for a day it has a bound, because it is reserved."""
        is_capped = self.limit_tokens_per_day or self.limit_total_tokens_per_day or self.cost_cap
        return self.llm_max_output_tokens or (ANSWER_TOKENS if is_capped else None)

    @property
    def hosts(self) -> tuple[str, ...] | None:
        """Returns the host names it answers to besides loopback, or None for any, if callers have identities."""
        if self.auth != "none" or self.allow_anonymous:
            return None
        return (self.host, *self.allowed_hosts)

    @property
    def webhook_secrets(self) -> tuple[bytes, ...]:
        """Returns what signs the events of the webhook; empty bytes for one that is no secret."""
        return tuple(map(_webhook_secret, _listed(self.webhook_secret)))

    @property
    def mcp_token_keys(self) -> list[str]:
        """Returns the keys that tokens are sealed with, the newest first."""
        return _listed(self.mcp_token_key)

    @property
    def base_url(self) -> str:
        """Returns where browsers reach the service."""
        if self.public_url is not None:
            return self.public_url.rstrip("/")
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)  # noqa: S104 (what it means to a browser)
        return f"http://{f'[{host}]' if ':' in host and not host.startswith('[') else host}:{self.port}"

    @property
    def secrets(self) -> set[str]:
        """Returns the values of all secret settings, and the passwords within URLs by themselves."""
        given = (getattr(self, name) for name in type(self).model_fields)
        values = [value.get_secret_value() for value in given if isinstance(value, SecretStr)]
        values += header_secrets(value.get_secret_value() for value in self.llm_extra_headers.values())
        passwords = [unquote(found) for value in values for found in _PASSWORD_IN_URL.findall(value)]
        signing = [*_listed(self.webhook_secret), *self.mcp_token_keys]
        return {secret for secret in (*values, *passwords, *signing) if is_recognisable(secret)}

    @property
    def model_configured(self) -> bool:
        return self.has_access_to(self.llm_model)

    def has_access_to(self, model: str) -> bool:
        return any(self.access_to(provider_and_id(model)[0]))

    def fault_of_model(self, model: str, *, is_needed: bool) -> str | None:
        """Returns what a model misses. Without a key for OpenAI's protocol, the offline model may answer instead."""
        provider, _ = provider_and_id(model)
        if provider.extra and find_spec(provider.package) is None:
            return f"needs a package that is not installed: pip install 'segue-agent[{provider.extra}]'"
        return f"needs {provider.key}" if (provider.extra or is_needed) and not self.has_access_to(model) else None

    def access_to(self, provider: ModelProvider) -> tuple[SecretStr | None, str | None]:
        return getattr(self, provider.key.lower()), getattr(self, provider.base_url.lower())


def _listed(secrets: SecretStr | None) -> list[str]:
    return secrets.get_secret_value().replace(",", " ").split() if secrets else []


def _webhook_secret(text: str) -> bytes:
    try:
        return base64.b64decode(text.removeprefix("whsec_"), validate=True) if text.startswith("whsec_") else b""
    except ValueError:
        return b""


def _is_key(text: str) -> bool:
    try:
        return len(base64.urlsafe_b64decode(text)) == _KEY_BYTES
    except ValueError:
        return False


def _leads_somewhere(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
