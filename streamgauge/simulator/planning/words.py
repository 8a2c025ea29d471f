"""Generated text: words with a leading space, one token each. Some are not ASCII."""

from __future__ import annotations

from random import Random

_PLAIN = """the a river of and to in is it that stream gauge measures water level over time while rain falls upstream
slowly then quickly past stones banks bridges mills towns fields until sea each hour someone reads number writes down
compares with yesterday last spring high mark dry summer flood season current depth speed width flow rate signal noise
model answer question reason because therefore however first second third finally note example shows how many where
when who what between under above along across before after during never always often rarely maybe surely small large
fast slow early late warm cold clear muddy quiet loud north south east west"""
_MARKED = ["naïve", "café", "Größe", "東京", "река", "—", "½", "🌊", "señal", "niveau\u0301"]

VOCABULARY: tuple[str, ...] = tuple(" " + word for word in [*_PLAIN.split(), *_MARKED])


def words(rng: Random, count: int) -> str:
    """Draw `count` words, one token each."""
    return "".join(rng.choices(VOCABULARY, k=count))
