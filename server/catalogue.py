"""From the configuration to the models it names. Every process makes its own; cheap, no torch."""

from __future__ import annotations

from models import registry
from models.base import ServedModel
from server.config import Settings


def make_models(settings: Settings) -> dict[str, ServedModel]:
    """The served models by name, in order. Raises ModelError for one that cannot be served."""
    return {
        section.served_name: registry.create(
            section.model,
            name=section.served_name,
            weights=section.weights,
            task=section.task,
            revision=section.revision,
            labels=section.labels,
            max_seq=section.max_seq,
        )
        for section in settings.models
    }
