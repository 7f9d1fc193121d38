"""A predictor's counters for Prometheus (``pip install 'overtone[metrics]'``).

>>> from prometheus_client import REGISTRY  # doctest: +SKIP
>>> REGISTRY.register(PredictorCollector(predictor, predictor="tts"))  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overtone.predictor import CodePredictor

__all__ = ["PredictorCollector"]

_COUNTERS = (
    ("frames", "overtone_frames", "Frames that have run."),
    ("rows", "overtone_rows", "Rows that took part in frames."),
    ("failed_rows", "overtone_failed_rows", "Rows whose status was not 0."),
    ("busy_seconds", "overtone_busy_seconds", "Seconds spent in frames."),
    ("spec_rounds", "overtone_spec_rounds", "Speculative rounds of all rows."),
    ("spec_codes", "overtone_spec_codes", "Codes that those drew."),
    ("spec_drafted", "overtone_spec_drafted", "Drafts verified."),
    ("spec_accepted", "overtone_spec_accepted", "Drafts accepted."),
)


class PredictorCollector:
    """Reads :meth:`CodePredictor.stats` when it is scraped; between scrapes it costs nothing.

    Args:
        predictor: Whose counters. It is kept alive.
        **labels: Labels of every sample, to tell predictors of one process apart.

    Raises:
        ImportError: ``prometheus_client`` is not installed.
    """

    def __init__(self, predictor: CodePredictor, **labels: str) -> None:
        from prometheus_client.core import CounterMetricFamily  # noqa: PLC0415 - an extra

        self._family: Any = CounterMetricFamily
        self._predictor = predictor
        self._labels = {**labels, "executor": predictor.executor, "device": predictor.device, "dtype": predictor.dtype}

    def collect(self) -> Iterator[Any]:
        """The counters now."""
        stats = self._predictor.stats()
        for key, name, meaning in _COUNTERS:
            if key in stats:
                family = self._family(name, meaning, labels=list(self._labels))
                family.add_metric(list(self._labels.values()), float(stats[key]))
                yield family

    def describe(self) -> list[Any]:
        """Nothing: that keeps a registry from collecting when it is told of the collector."""
        return []
