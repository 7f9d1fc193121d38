"""Counters for Prometheus: what a scrape sees."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from contract import MODEL
from overtone import CodePredictor
from overtone.metrics import PredictorCollector


class Family:
    """What `prometheus_client.core.CounterMetricFamily` is to a collector."""

    def __init__(self, name: str, documentation: str, labels: list[str]) -> None:
        self.name, self.labels, self.documentation = name, labels, documentation
        self.samples: list[tuple[list[str], float]] = []

    def add_metric(self, labels: list[str], value: float) -> None:
        self.samples.append((labels, value))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> None:
    core: Any = ModuleType("prometheus_client.core")
    core.CounterMetricFamily = Family
    monkeypatch.setitem(sys.modules, "prometheus_client", ModuleType("prometheus_client"))
    monkeypatch.setitem(sys.modules, "prometheus_client.core", core)


@pytest.mark.usefixtures("client")
def test_a_scrape_sees_the_counters_of_now(predictor: CodePredictor) -> None:
    collector = PredictorCollector(predictor, model="tts")
    predictor.predict_frame(*MODEL.inputs(3))
    found = {family.name: family for family in collector.collect()}
    values = {name: family.samples[0][1] for name, family in found.items()}
    assert values["overtone_busy_seconds"] > 0
    del values["overtone_busy_seconds"]
    speculation = {f"overtone_spec_{key}": 0 for key in ("rounds", "codes", "drafted", "accepted")}
    assert values == {"overtone_frames": 1, "overtone_rows": 3, "overtone_failed_rows": 0} | speculation
    frames = found["overtone_frames"]
    assert frames.labels == ["model", "executor", "device", "dtype"]
    assert frames.samples[0][0] == ["tts", "cpu", "cpu", "float32"]
    assert collector.describe() == []


def test_without_the_client_it_is_the_import_that_fails(
    predictor: CodePredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ImportError):
        PredictorCollector(predictor)
