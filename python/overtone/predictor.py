"""The public predictor: one class, whatever executes the frame.

:meth:`CodePredictor.from_pretrained` and :meth:`CodePredictor.predict_frame` are all that a script needs. A talker that
owns the loop constructs, ``preallocate``s, ``bind``s its tensors, lends its arena, and calls ``run_frame``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import fsdecode
from typing import TYPE_CHECKING, Any

from overtone.arguments import refused, whole_number
from overtone.codes_ring import CodesRing
from overtone.errors import BindingError, InputError, OvertoneError
from overtone.executors import choose_executor, type_name
from overtone.frame import BoundFrame, Frame, FramePlan
from overtone.ragged import RaggedSteps
from overtone.sampling import given_sampling
from overtone.speculation import given_speculation, log_counters, spec_stats, warn_unless_speculating

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from overtone._core import ModelSpec, Tensor
    from overtone._typing import Executor, GivenSpeculation, Path, Prepared, Progress, Sampling, TensorLike
    from overtone.binding import Binding
    from overtone.speculation import SpecCounters, SpecParams

__all__ = ["CodePredictor"]


class CodePredictor(RaggedSteps):
    """Predicts the residual codes of a frame from ``code_0`` and the talker's last hidden state.

    One predictor may be shared by threads; its frames then run one after another, and each thread gets outputs of its
    own from :meth:`predict_frame` (the buffers of :meth:`run_frame` serve one caller). It must not be used in a process
    forked after it was made.

    Every ``stream`` is an integer handle, an object with ``__cuda_stream__`` or ``cuda_stream``, or None for torch's
    current stream (the default stream where torch is not imported). Work is ordered on it, and a frame on another
    stream than the one before waits for that by event. The CPU executor runs before a call returns, and needs none.

    Inside a stream capture a frame is recorded into the caller's graph. What it uses is then kept for as long as the
    predictor lives, which has to outlive the graph. Launches of the graph and other frames of the predictor share one
    workspace: the caller keeps them in order, on one stream for example.

    Args:
        executor: ``auto``, ``cpu``, ``cuda``, ``tensorrt`` or ``onnxruntime``. ``auto`` is cuda where that can run the
            checkpoint, else cpu, and the log (``overtone``, level info) says why.
        device: Where to run: None, ``cpu``, ``cuda`` or ``cuda:1``, as text, as a torch device or as an ordinal. None
            is device 0 on the cuda executor.
        dtype: Working type. On the CPU: ``float32``, ``bfloat16`` (weights; activations are float32 always), ``int8``
            (weight-only, per output row); on CUDA: ``float32``, ``bfloat16`` or ``float16``. None is the type that
            keeps the stored weights exactly. torch and NumPy types are taken too.
        threads: Threads of the CPU executor; None for ``OVERTONE_NUM_THREADS``, else every core.

    Raises:
        InputError: An unknown executor or device.
        UnsupportedError: An executor or type that this version does not have.
        CudaUnavailableError: ``cuda`` was asked for and cannot run here.
    """

    def __init__(
        self, executor: str = "auto", device: object = None, dtype: object = None, *, threads: int | None = None
    ) -> None:
        self._choice = choose_executor(executor, device)
        self._executor_name = self._choice.name
        self._dtype = None if dtype is None else type_name(dtype)
        self._threads = None if threads is None else whole_number("threads", threads)
        self._core: Executor | None = None
        self._logged_spec_counters: list[SpecCounters] = []

    # --- making one -------------------------------------------------------------------------------------------------

    @classmethod
    def from_pretrained(
        cls,
        checkpoint: Path,
        executor: str = "auto",
        device: object = None,
        dtype: object = None,
        max_batch: int = 8,
        spec_verify_size: int = 0,
        *,
        spec_params: SpecParams | None = None,
        code_zero_table: Path | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> CodePredictor:
        """Load a checkpoint directory.

        Args:
            checkpoint: Directory with ``config.json`` and safetensors; see ``docs/checkpoints.md``.
            executor: As for the class.
            device: As for the class.
            dtype: As for the class.
            max_batch: Largest number of rows of one frame.
            spec_verify_size: Rows of a speculative verify pass; see :meth:`preallocate`.
            spec_params: Likewise.
            code_zero_table: A safetensors file whose only two-dimensional tensor is the talker's codec table, for
                checkpoints without the talker.
            threads: As for the class.
            progress: Called with (bytes done, bytes in all) while loading.

        Raises:
            CheckpointError: The checkpoint is missing, incomplete or damaged.
            ConfigError: Its configuration is, or asks for what overtone does not do.
            InputError: An argument is out of range.

        >>> predictor = CodePredictor.from_pretrained("tests/data/omni-tiny")
        >>> predictor.num_rvq_layers, predictor.codebook_size
        (7, 96)
        """
        predictor = cls(executor, device, dtype, threads=threads)
        predictor.preallocate(
            checkpoint,
            max_batch=max_batch,
            spec_verify_size=spec_verify_size,
            spec_params=spec_params,
            code_zero_table=code_zero_table,
            progress=progress,
        )
        return predictor

    @classmethod
    def from_tensors(
        cls,
        config: Mapping[str, Any] | str,
        state_dict: Mapping[str, TensorLike],
        executor: str = "auto",
        device: object = None,
        dtype: object = None,
        max_batch: int = 8,
        spec_verify_size: int = 0,
        *,
        spec_params: SpecParams | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> CodePredictor:
        """Load tensors that are in memory already; they are copied and may be freed afterwards.

        Args:
            config: What ``config.json`` would hold, as a mapping or as its text.
            state_dict: Tensors under the names they have in a checkpoint, any of the spellings; others are ignored.
            executor: As for the class.
            device: As for the class.
            dtype: As for the class.
            max_batch: Largest number of rows of one frame.
            spec_verify_size: Rows of a speculative verify pass; see :meth:`preallocate`.
            spec_params: Likewise.
            threads: As for the class.
            progress: Called with (bytes done, bytes in all) while loading.

        Raises:
            CheckpointError: A tensor is missing, or has the wrong shape or type, or is not finite.
            ConfigError: The configuration is incomplete, or asks for what overtone does not do.
        """
        predictor = cls(executor, device, dtype, threads=threads)
        given = given_speculation(spec_verify_size, spec_params)
        if not isinstance(config, str | Mapping):
            raise refused("config", config, "a mapping, or JSON text")
        if not isinstance(state_dict, Mapping):
            raise refused("state_dict", state_dict, "a mapping of names to tensors")
        text = config if isinstance(config, str) else json.dumps(dict(config), default=_jsonable)
        rows = whole_number("max_batch", max_batch)
        tensors, kept = dict(state_dict), predictor._dtype
        predictor._load(lambda kind, last: kind.from_tensors(text, tensors, kept, rows, last, given, progress), given)
        return predictor

    def preallocate(
        self,
        artifact_dir: Path,
        checkpoint_dir: Path | None = None,
        max_batch: int = 8,
        spec_verify_size: int = 0,
        stream: object = None,
        *,
        spec_params: SpecParams | None = None,
        code_zero_table: Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Load weights and allocate everything a frame needs.

        Args:
            artifact_dir: A checkpoint directory, or TensorRT Edge-LLM artifacts.
            checkpoint_dir: Supplies what the first lacks; None or empty when it lacks nothing.
            max_batch: Largest number of rows of one frame.
            spec_verify_size: Rows of a speculative verify pass, 2 to 8: the pending code and its drafts. 0 is the
                step-by-step loop; so is a size that cannot be honoured, which is said once in the log. No size changes
                a code; ``docs/speculation.md`` says when one is faster.
            spec_params: How drafts are chosen, and when speculation ends; None for :class:`SpecParams` as it is.
            stream: Not needed: everything is in place when the call returns.
            code_zero_table: As for :meth:`from_pretrained`.
            progress: Called with (bytes done, bytes in all) while loading.

        Raises:
            CheckpointError: The checkpoint is missing, incomplete or damaged; both lack the decoder's layers.
            ConfigError: A configuration is incomplete, or the two disagree.
            InputError: An argument is out of range.
        """
        del stream
        given = given_speculation(spec_verify_size, spec_params)
        rows = whole_number("max_batch", max_batch)
        artifacts = fsdecode(artifact_dir)
        checkpoint = fsdecode(checkpoint_dir) if checkpoint_dir else None
        table = None if code_zero_table is None else fsdecode(code_zero_table)
        self._load(
            lambda kind, last: kind.load(artifacts, checkpoint, table, self._dtype, rows, last, given, progress), given
        )

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def executor(self) -> str:
        """Name of the executor that runs the frames."""
        return self._executor_name

    @property
    def device(self) -> str:
        """Where frames run: ``cpu``, or ``cuda:0`` for example."""
        return self._loaded.device

    @property
    def device_name(self) -> str | None:
        """The product's name of a CUDA device; None on the CPU."""
        return self._loaded.device_name

    @property
    def spec(self) -> ModelSpec:
        """The architecture."""
        return self._loaded.spec

    @property
    def dtype(self) -> str:
        """Working type: ``float32``, ``bfloat16``, ``float16`` or ``int8``."""
        return self._loaded.dtype

    @property
    def max_batch(self) -> int:
        """Largest number of rows of one frame."""
        return self._loaded.max_batch

    @property
    def threads(self) -> int:
        """Threads of the CPU executor; 0 where a device runs the frames."""
        return self._loaded.threads

    @property
    def instructions(self) -> str:
        """Instruction set in use: ``avx2+fma`` or ``scalar`` on the CPU, the generation (``sm_90``) on CUDA."""
        return self._loaded.instructions

    @property
    def num_rvq_layers(self) -> int:
        """R: residual codebooks, each of which a frame gets one code from."""
        return self.spec.residual_codebooks

    @property
    def codebook_size(self) -> int:
        """V: entries of a residual codebook."""
        return self.spec.codebook_size

    def codec_embed_table(self, layer: int) -> Tensor:
        """Embedding table E[layer] [V, Ht], which embeds ``code_{layer + 1}``; read-only, in its storage type.

        Raises:
            InputError: There is no such layer.
        """
        return self._loaded.codec_embed_table(whole_number("layer", layer))

    # --- a talker's tensors and memory -------------------------------------------------------------------------------

    def bind(self, binding: Binding) -> None:
        """Borrow a talker's tensors; they are checked once, here, and kept alive. They replace those bound before.

        Raises:
            BindingError: A size or a tensor does not fit the artifacts; nothing is bound then.
            InputError: One is no tensor where the executor works; nothing is bound then.
        """
        core = self._loaded
        spec = core.spec
        for name, found, expected in (
            ("talker_hidden_size", binding.talker_hidden_size, spec.talker_hidden_size),
            ("num_codes_per_frame", binding.num_codes_per_frame, spec.codes_per_frame),
        ):
            if whole_number(name, found) != expected:
                raise BindingError(
                    f"{name}: found {found}, expected {expected}", key=name, found=str(found), expected=str(expected)
                )
        rows = whole_number("max_batch_size", binding.max_batch_size)
        if not 1 <= rows <= core.max_batch:
            expected_range = f"1 to {core.max_batch}"
            raise BindingError(
                f"max_batch_size: found {rows}, expected {expected_range}",
                key="max_batch_size",
                found=str(rows),
                expected=expected_range,
            )
        core.bind(rows, binding.code_zero_embed_table, binding.codec_hiddens)

    @property
    def required_context_memory(self) -> int:
        """Bytes of the arena that a frame works in."""
        return self._loaded.required_context_memory

    def set_context_memory(self, memory: TensorLike | None) -> bool:
        """Work in an arena that the talker owns, and release our own.

        Nothing in it has to survive a frame: the talker may write to it between frames, on the stream of the frames.
        None returns to an arena of our own. On the cuda executor the call waits for the frames under way and records
        the graphs anew; a caller's own graphs still hold the arena before, and have to be captured again.

        Args:
            memory: A contiguous, writable tensor of any type, apart from all inputs and outputs of frames.

        Returns:
            False when it is smaller than :attr:`required_context_memory`; the arena in use stays.

        Raises:
            InputError: It is not contiguous, or read-only.
        """
        return self._loaded.set_context_memory(memory)

    def reset_kv_cache(self, batch_size: int, stream: object = None) -> None:
        """Empty the KV cache of ``batch_size`` rows.

        ``run_frame`` and ``predict_frame`` need no call of it: every frame starts empty, and there is no more to do.

        Raises:
            InputError: ``batch_size`` is not 1 to ``max_batch``.
        """
        del stream
        self._checked_rows("batch_size", batch_size)

    def capture_decode_graphs(self, stream: object = None) -> bool:
        """Capture anew what the executor replays; loading has done so already. The KV cache is left empty.

        Returns:
            True.

        Raises:
            DeviceError: The device refused; what was captured before stays.
        """
        del stream
        self._loaded.capture_graphs()
        return True

    # --- frames -------------------------------------------------------------------------------------------------------

    def predict_frame(
        self,
        talker_last_hidden: TensorLike,
        code_zero: TensorLike | Sequence[int],
        *,
        sampling: Sampling = None,
        frame_idx: int | TensorLike = -1,
        active: TensorLike | None = None,
        logits: bool = False,
        stream: object = None,
    ) -> Frame:
        """Predict one frame into tensors that the caller owns.

        Args:
            talker_last_hidden: [B, Ht] float32, float16 or bfloat16.
            code_zero: [B] int32 or int64, or a sequence of integers.
            sampling: As in :class:`FramePlan`.
            frame_idx: As in :class:`FramePlan`.
            active: As in :class:`FramePlan`; rows left out stay zero.
            logits: Return the logits of every codebook too.
            stream: Where to order the work; see the class.

        Raises:
            InputError: An argument has the wrong shape, type, device or range.
            BindingError: There is no talker's codec table: ``bind`` one, or load with ``code_zero_table``.
            CaptureError: The stream is under capture, and a value on the host would be repeated by every replay.

        >>> import numpy as np
        >>> predictor = CodePredictor.from_pretrained("tests/data/omni-tiny", executor="cpu")
        >>> frame = predictor.predict_frame(np.ones((1, 64), np.float32), [3])
        >>> frame.wait().codes.shape
        (1, 8)
        """
        return Frame(
            *self._loaded.predict_frame(
                talker_last_hidden, code_zero, given_sampling(sampling), frame_idx, active, logits, stream
            )
        )

    def run_frame(
        self, plan: FramePlan, output_codes: TensorLike | None = None, stream: object = None, *, logits: bool = False
    ) -> Frame:
        """Predict one frame into the caller's ``output_codes`` and bound tensors.

        What the caller does not provide goes into buffers that the next frame of the same batch size reuses.

        Args:
            plan: The frame's inputs.
            output_codes: [B, C] int32 or int64, any strides, writable; more rows are left alone. On the cuda executor
                in memory of the device, or in pinned host memory.
            stream: Where to order the work; see the class.
            logits: Return the logits of every codebook too.

        Raises:
            InputError: An argument has the wrong shape, type, device or range, or an output overlaps an input.
            BindingError: There is no talker's codec table: ``bind`` one, or load with ``code_zero_table``.
            CaptureError: As for :meth:`predict_frame`.
        """
        prepared = self._prepare(plan, output_codes, stream, logits=logits)
        prepared.launch(stream)
        return Frame(*prepared.outputs())

    def bind_frame(
        self, plan: FramePlan, output_codes: TensorLike | None = None, stream: object = None, *, logits: bool = False
    ) -> BoundFrame:
        """Import and check a frame's tensors once, to launch it many times.

        Args:
            plan: The frame's inputs; tensors among them are read anew at each launch.
            output_codes: As for :meth:`run_frame`.
            stream: What fills the tensors now is ordered before this stream, once. Later, each launch is in the order
                of its own stream alone.
            logits: Return the logits of every codebook too.

        Raises:
            InputError: As for :meth:`run_frame`.
            BindingError: As for :meth:`run_frame`.
        """
        return BoundFrame(self._prepare(plan, output_codes, stream, logits=logits))

    def codes_ring(self, frames: int, batch: int) -> CodesRing:
        """A ring that collects the codes of up to ``frames`` frames of ``batch`` rows, for one ``drain()``.

        Raises:
            InputError: ``batch`` is not 1 to ``max_batch``, or ``frames`` not positive.
        """
        slots = whole_number("frames", frames)
        if slots < 1:
            raise refused("frames", frames, "1 or above")
        return CodesRing(self._loaded, slots, self._checked_rows("batch", batch))

    # --- counters -----------------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, int | float]:
        """Counters since loading: ``frames``, ``rows`` and ``failed_rows``; on the CPU ``busy_seconds`` in frames, too.

        Of speculation, over all rows: ``spec_rounds``, ``spec_codes`` that they drew, ``spec_drafted`` and
        ``spec_accepted`` drafts; ``speculating`` is whether the next frame speculates. Frames under way may not be
        counted yet; nothing waits for them.
        """
        return self._loaded.stats() | spec_stats(self._loaded)

    @property
    def frame_bytes(self) -> int:
        """Bytes of weights that one frame reads from memory, whatever its batch."""
        return self._loaded.frame_bytes

    def read_weights(self) -> None:
        """Read what :attr:`frame_bytes` counts, with the same threads, and do nothing else.

        The time that this takes is the least a frame can take on this machine.

        Raises:
            UnsupportedError: Not on the cuda executor.
        """
        self._loaded.read_frame_bytes()

    def log_and_reset_spec_stats(self) -> None:
        """Log what speculation counted since the last call: a line for each row that took part, and one for all.

        They go to the logger ``overtone``, level info. Nothing happens when speculation is off or no round has run.
        Counters that have not come back from a device yet are left to the next call; :meth:`stats` is not reset.
        """
        self._logged_spec_counters = log_counters(self._loaded, self._logged_spec_counters)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _load(self, load: Callable[[Any, int | None], Executor], given: GivenSpeculation | None) -> None:
        """Make the executor, and take it in place of the one before."""
        self._core, self._executor_name = self._choice.make(load, threads=self._threads)
        self._logged_spec_counters = []
        warn_unless_speculating(self._core, self._executor_name, given)

    @property
    def _loaded(self) -> Executor:
        if self._core is None:
            raise OvertoneError("nothing is loaded yet: call preallocate first")
        return self._core

    def _checked_rows(self, name: str, rows: object) -> int:
        number, limit = whole_number(name, rows), self._loaded.max_batch
        if not 1 <= number <= limit:
            expected = f"1 to {limit} (max_batch)"
            raise InputError(
                f"{name}: found {number} rows, expected {expected}", key=name, found=str(number), expected=expected
            )
        return number

    def _prepare(self, plan: FramePlan, output_codes: TensorLike | None, stream: object, *, logits: bool) -> Prepared:
        ring = plan.codes_ring
        return self._loaded.prepare_frame(
            {
                "batch": self._checked_rows("active_batch_size", plan.active_batch_size),
                "talker_last_hidden": plan.talker_last_hidden,
                "code_zero": plan.code_zero,
                "sampling": given_sampling(plan.sampling),
                "frame_idx": plan.frame_idx,
                "advance_frame_idx": plan.advance_frame_idx,
                "active": plan.active,
                "output_codes": output_codes,
                "codes_ring": None if ring is None else (ring.codes, ring.slot),
                "logits": logits,
            },
            stream,
        )


def _jsonable(value: object) -> object:
    """A value of a configuration that JSON has no word for: another mapping, a torch type."""
    return dict(value) if isinstance(value, Mapping) else str(value)
