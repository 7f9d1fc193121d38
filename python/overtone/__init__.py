"""overtone: the code predictor of speech talkers, as an engine.

A talker (Qwen3-Omni, Qwen3-TTS) emits one code per 80 ms audio frame; overtone predicts the frame's residual codes
from that code and the talker's last hidden state.

>>> import overtone
>>> overtone.SamplingParams(temperature=0.9, top_k=50, seed=7)
SamplingParams(temperature=0.9, top_k=50, top_p=1.0, seed=7)
"""

from __future__ import annotations

from overtone._core import ModelSpec, Tensor, __version__
from overtone.binding import Binding
from overtone.codes_ring import CodesRing
from overtone.errors import (
    BindingError,
    CaptureError,
    CheckpointError,
    ConfigError,
    CudaUnavailableError,
    DeviceError,
    EngineError,
    FrameError,
    InputError,
    OutOfMemoryError,
    OvertoneError,
    UnsupportedError,
)
from overtone.frame import BoundFrame, Frame, FramePlan, HostFrame
from overtone.memory import MemoryEstimate, estimate_memory
from overtone.predictor import CodePredictor
from overtone.ragged import Phase, RaggedBatch, RaggedConfig, RaggedFault, RaggedIo, RaggedStep
from overtone.sampling import SamplingArrays, SamplingParams
from overtone.speculation import SpecParams

__all__ = [
    "Binding",
    "BindingError",
    "BoundFrame",
    "CaptureError",
    "CheckpointError",
    "CodePredictor",
    "CodesRing",
    "ConfigError",
    "CudaUnavailableError",
    "DeviceError",
    "EngineError",
    "Frame",
    "FrameError",
    "FramePlan",
    "HostFrame",
    "InputError",
    "MemoryEstimate",
    "ModelSpec",
    "OutOfMemoryError",
    "OvertoneError",
    "Phase",
    "RaggedBatch",
    "RaggedConfig",
    "RaggedFault",
    "RaggedIo",
    "RaggedStep",
    "SamplingArrays",
    "SamplingParams",
    "SpecParams",
    "Tensor",
    "UnsupportedError",
    "__version__",
    "estimate_memory",
]
