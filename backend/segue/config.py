"""The settings, read once by commands and alembic, and passed down. `make check` compares them with `.env.example`."""

import base64
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import unquote

from pydantic import BeforeValidator, Field, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from segue.api.api_settings import ApiSettings
from segue.domain.agent import PROVIDERS
from segue.domain.field_types import JSON_OBJECT, Seconds, SecretUrl, Url
from segue.domain.redaction import header_secrets, is_recognisable
from segue.models.model_settings import ModelSettings
from segue.secret_files import listed, read_secrets

_PASSWORD_IN_URL = re.compile(r"(?:://[^/:@]*:|[?&]password=)([^/@&]+)(?=@|&|$)")
_WEBHOOK_SECRET_BYTES = (24, 64)
_KEY_BYTES = 32
_HOW_TO_MAKE_ONE = "Make one: echo whsec_$(openssl rand -base64 32)"

Port = Annotated[int, Field(ge=0, le=65535)]


class Settings(ApiSettings, ModelSettings, BaseSettings):
    """The settings of the process itself, and the groups of its rooms. A field is named as in the environment."""

    # A blank at the end of a value may be the \r of a file with the line ends of Windows.
    model_config = SettingsConfigDict(
        env_file=".env",
        env_ignore_empty=True,
        enable_decoding=False,
        extra="ignore",
        frozen=True,
        str_strip_whitespace=True,
    )

    port: Port = 8000
    jwt_jwks_url: Url | None = None
    jwt_key: SecretStr | None = None
    jwt_issuer: str | None = None
    jwt_audience: str | None = None
    jwt_groups_claim: str = "groups"
    jwt_roles: Annotated[Mapping[str, frozenset[str]], JSON_OBJECT] = {}
    openwebui_jwt_secret: Annotated[SecretStr, Field(min_length=32)] | None = None
    worker_metrics_port: Port | None = None
    otel_exporter_otlp_endpoint: Url | None = None
    otel_capture_content: bool = False
    webhook_url: SecretUrl | None = None
    webhook_secret: SecretStr | None = None
    webhook_content: bool = False
    request_read_timeout_s: Seconds = 30
    keep_alive_s: Seconds = 5
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(str.lower)] = "info"
    log_format: Literal["console", "json"] = "console"
    secrets_dir: Path | None = None
    data_dir: Path = Path(".segue")
    record_sample: Annotated[float, Field(ge=0, le=1)] = 0
    database_url: SecretStr | None = None
    database_pooler: Literal["none", "session", "transaction"] = "none"
    redis_url: SecretStr | None = None
    migrate_on_start: bool = True
    agents_config: Path = Path("agents.toml")
    instructions_file: Path | None = None
    language_dir: Path | None = None
    mcp_config: Path = Path("mcp.json")
    mcp_token_key: SecretStr | None = None
    public_url: Url | None = None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 (pydantic's, which warns and knows no SECRETS_DIR)
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """A file in SECRETS_DIR counts if neither an argument, the environment nor `.env` has the setting."""
        given = init_settings, env_settings, dotenv_settings
        folder = next((found["secrets_dir"] for source in given if (found := source()).get("secrets_dir")), None)
        secrets = {name.lower(): value for name, value in read_secrets(folder and Path(folder)).items()}
        known = {name: value for name, value in secrets.items() if name in cls.model_fields}
        return *given, InitSettingsSource(settings_cls, known)

    @field_validator("database_url", "redis_url")
    @classmethod
    def _leads_to_a_server(cls, value: SecretStr | None, field: ValidationInfo) -> SecretStr | None:
        if value is not None:
            from segue.db import urls  # noqa: PLC0415 (its libraries are slow to import)

            check = urls.check_postgres if field.field_name == "database_url" else urls.check_redis
            check(value.get_secret_value())
        return value

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
        if value is not None and not (os.access(value.expanduser(), os.X_OK) and value.expanduser().is_dir()):
            raise ValueError(f"has to be a folder of files, and {value} is none")
        return value

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
            raise ValueError(f"WEBHOOK_SECRET is none: it is whsec_ and 24 to 64 bytes in Base64. {_HOW_TO_MAKE_ONE}")
        return self

    @model_validator(mode="after")
    def _tokens_can_be_sealed(self) -> Self:
        if self.mcp_token_key is not None and not (self.mcp_token_keys and all(map(_is_key, self.mcp_token_keys))):
            raise ValueError("MCP_TOKEN_KEY has to be 32 bytes in Base64. Make one: openssl rand -base64 32")
        if self.receipt_key and not _is_key(self.receipt_key.get_secret_value()):
            raise ValueError("RECEIPT_KEY has to be 32 bytes in Base64. Make one: openssl rand -base64 32")
        return self

    @property
    def webhook_secrets(self) -> tuple[bytes, ...]:
        """Returns the keys that sign webhook events; empty bytes for a text that is no such secret."""
        return tuple(map(_webhook_secret, _listed(self.webhook_secret)))

    @property
    def mcp_token_keys(self) -> list[str]:
        """Returns the keys that encrypt tokens, the newest first."""
        return _listed(self.mcp_token_key)

    @property
    def base_url(self) -> str:
        """Returns the URL at which browsers reach the service."""
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
        of_lists = [*_listed(self.webhook_secret), *self.mcp_token_keys]
        of_lists += [key for provider in PROVIDERS.values() for key in _listed(self.access_to(provider)[0])]
        return {secret for secret in (*values, *passwords, *of_lists) if is_recognisable(secret)}


def _listed(secrets: SecretStr | None) -> list[str]:
    return listed(secrets.get_secret_value()) if secrets else []


def _webhook_secret(text: str) -> bytes:
    return _decoded(text.removeprefix("whsec_")) if text.startswith("whsec_") else b""


def _is_key(text: str) -> bool:
    return len(_decoded(text.replace("-", "+").replace("_", "/"))) == _KEY_BYTES


def _decoded(text: str) -> bytes:
    """Returns empty bytes for what is not all Base64, as two keys in one text."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""
