"""Images: folders to upload from, and the operator's own cloud images, in `[images]` and its variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from quorate.config.sources import (
    ConfigError,
    Option,
    Source,
    in_named_table,
    in_table,
    in_variables,
    merge,
    option,
    options_of,
    table,
)
from quorate.config.values import as_folders, as_https_url, as_text, read_options

IMAGES = table(
    upload_dirs=Option(
        "folders of this machine whose images callers over HTTP may upload with `image_upload file=…`, and where they "
        "may save new files with `backup_file_restore file=…`; several separated by commas (a list in TOML). Callers "
        "over stdio may use any path",
        as_folders,
        variables=("QUORATE_IMAGES_UPLOAD_DIRS",),
    )
)
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")


@dataclass(frozen=True, slots=True)
class CloudImage:
    """Where a cloud image is, and how to verify it."""

    url: str = option("the image, in the format qcow2", as_https_url, default="")
    checksum: str | None = option("its checksum, such as `sha256:…`", as_text)
    checksum_url: str | None = option("a file with its checksum, in the format of `sha256sum` or of BSD", as_https_url)
    user: str | None = option("the user that the image creates", as_text, usual="the image's own")


@dataclass(frozen=True, slots=True)
class ImageCatalog:
    """The operator's own images, for the tools of a cluster."""

    own: Mapping[str, CloudImage]


def read_images(process: Source, document: Mapping[str, object], toml: Source) -> dict[str, Any]:
    """The settings `upload_dirs` and `image_catalog`, where they are set."""
    raw = merge(in_variables(IMAGES, process), in_named_table("images", document, IMAGES, toml, also=("catalog",)))
    content = document.get("images")
    entries = content.get("catalog", {}) if isinstance(content, dict) else {}
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise ConfigError(f"Images{toml.suffix} must be tables: write [images.catalog.NAME] above their settings.")
    catalog = {name: _image(name, entry, toml) for name, entry in entries.items()}
    return {**read_options(IMAGES, raw), **({"image_catalog": catalog} if catalog else {})}


def _image(name: str, content: Mapping[str, Any], toml: Source) -> CloudImage:
    source = replace(toml, suffix=f" in [images.catalog.{name}]")
    if not _NAME.fullmatch(name):
        raise ConfigError(f'Image name "{name}"{toml.suffix} must be lower-case letters, digits, "." and "-" only.')
    image = CloudImage(**read_options(options_of(CloudImage), in_table(content, options_of(CloudImage), source)))
    if not image.url:
        raise ConfigError(f"url{source.suffix} is missing: set it to the https:// address of the image.")
    if not image.checksum and not image.checksum_url:
        raise ConfigError(f"checksum{source.suffix} is missing: set it, or checksum_url.")
    return image
