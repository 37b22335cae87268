"""The stable reason codes: why something is not supported, not as asked, or ended.

A code is dotted, its first part says what it is about. This is the closed list of what engine and
supervisor emit; `docs/generated/modes.md` shows it, and a test compares it with the sources. An
entry whose second part is in angle brackets stands for one code per name of that kind. Codes of
single requests as HTTP clients see them are those of docs/http-api.md.
"""

from __future__ import annotations

from typing import Final

from strata_protocol.decision_reasons import DECISIONS
from strata_protocol.reason_code import ReasonCode

_FILE: Final = "Get the file again or convert it again; compare its checksum with the source."
_OTHER_MODEL: Final = "Use a model of an architecture that is supported; the text names them."
_OTHER_DRAFTER: Final = "Use a drafter that was made for this model, or set mtp to off."
_REPORT: Final = "Report it with the engine's log of that start: it is a fault of Strata."

REASONS: Final[tuple[ReasonCode, ...]] = (
    # --- kernels
    ReasonCode(
        "kernel.missing",
        "No kernel of this backend serves an operation that the mode launches; the text names"
        " operation, types, shape and tensor.",
        "Take the value that runs instead, or a file with other types; `capabilities` shows what"
        " each backend serves.",
    ),
    ReasonCode(
        "kernel.none",
        "No kernel of the backend is written, so nothing runs on it; what is missing is listed"
        " beside it.",
        "Use another backend; `plan` still tells what the device's memory would hold.",
    ),
    ReasonCode(
        "kernel.kv_type",
        "The backend has no kernels for this type of KV cache; the text names those that it runs,"
        " and the missing kernels follow.",
        "Set kv to a type that runs, or leave it at auto.",
    ),
    ReasonCode(
        "kernel.refused",
        "A kernel of this operation exists and does not take this request; the text says why.",
        "As for kernel.missing, of which it is a part.",
    ),
    ReasonCode(
        "kernel.feature",
        "A kernel of this operation exists and does not know a feature that the model needs.",
        "As for kernel.missing, of which it is a part.",
    ),
    ReasonCode(
        "kernel.masked",
        "A kernel that would serve is hidden by --without-kernel.",
        "Start without that flag.",
    ),
    # --- memory
    ReasonCode(
        "mem.insufficient",
        "The weights and the least of everything else need more memory than there is.",
        "Free memory, or use a smaller file or one with smaller types.",
    ),
    ReasonCode(
        "mem.kv_budget",
        "Keys and values for what was asked do not fit in the memory that is left.",
        "Ask for a smaller max_context, batch or kv_tokens, or for a smaller kv type.",
    ),
    ReasonCode(
        "mem.kv_minimum",
        "The KV pool that was asked for is smaller than the least that the mode can work with.",
        "Ask for more kv_tokens, or leave it at 0.",
    ),
    ReasonCode(
        "mem.memlock",
        "The memory of the plan cannot be locked: it is more than the process may lock, or the"
        " system refused.",
        "Raise RLIMIT_MEMLOCK (ulimit -l, LimitMEMLOCK= of the service), or leave mlock off.",
    ),
    ReasonCode(
        "mem.allocate",
        "The system refused memory that the plan had counted on.",
        "See what else takes memory on the machine, or set a lower kv_tokens.",
    ),
    ReasonCode(
        "mem.host",
        "The engine ran out of memory outside its plan.",
        "See what else takes memory on the machine and its control group's limit.",
    ),
    # --- machine
    ReasonCode(
        "device.memory",
        "More of the device's memory was asked for than is available.",
        "Free memory of the device, or lower device_memory.",
    ),
    ReasonCode(
        "host.cores",
        "More threads were asked for than this process may use cores.",
        "Set threads to 0, or give the process more cores.",
    ),
    ReasonCode(
        "device.lost",
        "The device stopped answering while the engine computed on it; the text names the"
        " operation.",
        "Nothing at first: the engine is started again and its requests go on. Where it happens"
        " again, look into the log of the device's driver.",
    ),
    ReasonCode(
        "device.unknown",
        "No device of this backend has the name or index that was asked for; the text lists them.",
        "Set device to auto or to one of the devices.",
    ),
    # --- modes
    ReasonCode(
        "mode.not_built",
        "The mode is not part of this build.",
        "Leave it off, or use a build that has it.",
    ),
    ReasonCode(
        "mode.quarantined",
        "The mode failed here before with this build, file and device, and is not offered again.",
        "See `status` for the failure; a changed build or file ends the quarantine.",
    ),
    ReasonCode(
        "mode.conflict",
        "The value would run, but only with less of other modes, which the text names.",
        "Set the mode to keep it, and leave open or lower the modes that the text names.",
    ),
    ReasonCode(
        "mode.exactness",
        "Only types less exact than the one that was set would run, and exactness is never lowered"
        " without being asked for.",
        "Set the less exact type, or leave it at auto.",
    ),
    ReasonCode(
        "mode.not_offered",
        "The engine has planned no configuration with the value.",
        "Ask for another value, or for a mode that the value needs; `plan` shows what there is.",
    ),
    ReasonCode(
        "mode.stepped_down",
        "Engines that ran with more have crashed, so the service went down its ladder of modes.",
        "See `crashes`; the service goes up again by itself after half an hour without a crash.",
    ),
    ReasonCode(
        "mode.no_drafts",
        "Nothing drafts: mtp is off, or left at auto with a file that has no draft layers.",
        "Name a drafter's file as mtp, or use a file with draft layers.",
    ),
    ReasonCode(
        "mode.one_sequence",
        "Drafts while sequences share a step were asked for, and the batch is 1.",
        "Ask for a larger batch, or leave batch_mtp at auto.",
    ),
    ReasonCode(
        "kv.block",
        "The kv type stores blocks of several elements, and the model's heads are no whole number"
        " of them.",
        "Use another kv type.",
    ),
    ReasonCode(
        "caps.shortened",
        "There are more reasons than a report holds; the text says how many.",
        "Plan with fewer modes than these to see them all.",
    ),
    ReasonCode(
        "mode.foreign_device",
        "The device is assumed: this program can plan for it and cannot run it.",
        "Run the engine of that backend on a machine that has the device.",
    ),
    # --- model
    ReasonCode(
        "model.architecture",
        "The file is of an architecture that this build does not know.",
        _OTHER_MODEL,
    ),
    ReasonCode(
        "model.part",
        "The file goes with a model and is none, or the file named with --ple holds no per-layer"
        " embedding table.",
        "Serve the model, and name the file with --mtp or --ple as the text says.",
    ),
    ReasonCode(
        "model.metadata",
        "A value in the file's metadata is missing, out of range or of the wrong type.",
        _FILE,
    ),
    ReasonCode("model.tensor_missing", "A tensor of the architecture is not in the file.", _FILE),
    ReasonCode(
        "model.tensor_shape", "A tensor has another shape than the metadata implies.", _FILE
    ),
    ReasonCode(
        "model.tensor_type",
        "A tensor is of an unknown type, or a vector is of a type that is not plain floats.",
        "Use a file with other types; `capabilities` shows those that are served.",
    ),
    ReasonCode(
        "model.tensor_unexpected",
        "The file holds a tensor that the architecture does not use, so results would be wrong.",
        "Use a file of the plain architecture, without that tensor.",
    ),
    ReasonCode(
        "model.context",
        "A longer context was asked for than the model was made for.",
        "Set max_context to 0 or to at most the model's own.",
    ),
    ReasonCode(
        "model.no_quantized_weights",
        "No matrix of the model is quantised, so int8 activations have no use.",
        "Leave activations at auto.",
    ),
    ReasonCode(
        "model.no_experts",
        "An expert cache was asked for, and the model has no experts.",
        "Leave expert_cache at auto.",
    ),
    # --- drafter
    ReasonCode(
        "drafter.none",
        "Drafts were asked for, and there is no drafter: the model's file has no draft layer.",
        "Set mtp to off, or to the file of a drafter that was made for the model.",
    ),
    ReasonCode(
        "drafter.architecture",
        "The drafter is of another architecture than the model, or of one whose draft layers this"
        " build does not know.",
        _OTHER_DRAFTER,
    ),
    ReasonCode(
        "drafter.layers",
        "The drafter was made for a model with another number of layers, or has not one layer.",
        _OTHER_DRAFTER,
    ),
    ReasonCode("drafter.shape", "A size of the drafter is not that of the model.", _OTHER_DRAFTER),
    ReasonCode(
        "drafter.metadata",
        "The drafter was trained to combine its inputs in a way that this build does not compute.",
        _OTHER_DRAFTER,
    ),
    ReasonCode("drafter.tensor_missing", "A tensor of the draft layer is not in the file.", _FILE),
    ReasonCode(
        "drafter.tensor_shape",
        "A tensor of the draft layer has another shape than the metadata implies.",
        _FILE,
    ),
    ReasonCode(
        "drafter.tensor_type",
        "A tensor of the draft layer is of an unknown type, or of one that has no place there.",
        _OTHER_DRAFTER,
    ),
    ReasonCode(
        "drafter.tensor_unexpected",
        "The draft layer has a tensor that its architecture does not use, so drafts would be"
        " wrong.",
        _OTHER_DRAFTER,
    ),
    ReasonCode(
        "drafter.acceptance",
        "On the model's own text the drafter is hardly ever right, so drafts would only cost time.",
        _OTHER_DRAFTER,
    ),
    # --- file
    ReasonCode(
        "gguf.open",
        "The file cannot be opened or read.",
        "Look at path and permissions.",
    ),
    ReasonCode("gguf.magic", "The file is not a GGUF file.", _FILE),
    ReasonCode(
        "gguf.version",
        "The file has a GGUF version or byte order that is not read.",
        "Convert it again with current tools.",
    ),
    ReasonCode("gguf.truncated", "The file ends before its content does.", _FILE),
    ReasonCode("gguf.corrupt", "The file's header contradicts itself.", _FILE),
    ReasonCode("gguf.limit", "A count or length in the file is beyond all sense.", _FILE),
    ReasonCode(
        "gguf.metadata", "A key of the file's metadata is missing or of a wrong type.", _FILE
    ),
    ReasonCode(
        "gguf.split",
        "The file is a later part of a split model, or is not named as its first part, so that the"
        " others cannot be found.",
        "Name the first part, NAME-00001-of-0000N.gguf, with the others beside it.",
    ),
    ReasonCode(
        "gguf.split_missing",
        "Parts of the split model are not there; the text lists them.",
        "Get the parts that are missing and put them beside the first.",
    ),
    ReasonCode(
        "gguf.split_foreign",
        "A file in the place of a part of a split model is not that part.",
        _FILE,
    ),
    ReasonCode(
        "gguf.duplicate",
        "Two files of the model hold a tensor of one name.",
        "Name only files that belong together.",
    ),
    ReasonCode(
        "gguf.companion",
        "The file that was named beside the model is of another architecture or a split one's.",
        "Name the file that was made with the model.",
    ),
    # --- probe
    ReasonCode(
        "probe.unproven",
        "The engine runs less than it was to, and gave no reason of its own.",
        _REPORT,
    ),
    ReasonCode(
        "probe.differs",
        "A step in the mode gave other results than the plain path.",
        _REPORT,
    ),
    ReasonCode(
        "numeric.logits",
        "A step gave logits that are not finite.",
        "Check the file's checksum; if it is right, report it with the engine's log.",
    ),
    # --- configuration
    ReasonCode(
        "config.<mode>",
        "The value of a mode is out of its range or none of its words.",
        "Give a value of the range that the text states.",
    ),
    ReasonCode(
        "config.flag",
        "The engine's command line has an unknown flag or a value that cannot be read.",
        "See `strata-engine-cpu --help`.",
    ),
    ReasonCode(
        "config.ipc",
        "The descriptors of the protocol cannot be used.",
        "Let the supervisor start the engine.",
    ),
    ReasonCode(
        "config.isa",
        "The instruction set is unknown, or this processor lacks it.",
        "Set isa to auto.",
    ),
    ReasonCode(
        "config.without_kernel",
        "A value of --without-kernel cannot be read.",
        "Write GLOB or GLOB:CONDITION as the text says.",
    ),
    ReasonCode(
        "plan.range",
        "The plan that the supervisor chose has a value that the model cannot have.",
        _REPORT,
    ),
    # --- engine process
    ReasonCode(
        "engine.missing",
        "The engine's program cannot be started.",
        "Install the package, or name the program with --engine.",
    ),
    ReasonCode(
        "engine.exit",
        "The engine ended before it was ready, and another start would end the same way.",
        "Read the last lines of its log in the run directory.",
    ),
    ReasonCode(
        "engine.refused",
        "The engine refused to start; the text gives its exit status.",
        "Read the last lines of its log in the run directory.",
    ),
    ReasonCode(
        "engine.hold",
        "The engine ended too often; it is started again after a while.",
        "See `status` for the ends so far.",
    ),
    ReasonCode(
        "ipc.pipe",
        "The engine could not make a pipe.",
        "Raise the limit of open files.",
    ),
    ReasonCode(
        "ops.argument",
        "A test or tool called a kernel with arguments that do not fit.",
        "Correct the caller.",
    ),
    # --- protocol
    ReasonCode("proto.magic", "A frame does not start with the magic bytes.", _REPORT),
    ReasonCode(
        "proto.version",
        "A frame has another version than ours.",
        "Use supervisor and engine of one build.",
    ),
    ReasonCode(
        "proto.flags", "A frame's flags are reserved or disagree with its message.", _REPORT
    ),
    ReasonCode("proto.length", "A frame is longer than the limit of its class.", _REPORT),
    ReasonCode("proto.crc", "A frame's checksum does not match.", _REPORT),
    ReasonCode("proto.truncated", "The stream ended inside a frame.", _REPORT),
    ReasonCode("proto.decode", "A payload is not of the schema.", _REPORT),
    ReasonCode("proto.unknown_type", "There is no such message in this direction.", _REPORT),
    ReasonCode("proto.order", "A message came in a phase that does not allow it.", _REPORT),
    ReasonCode(
        "proto.mismatch",
        "Supervisor and engine have no protocol version in common.",
        "Use supervisor and engine of one build.",
    ),
    # --- single requests
    ReasonCode(
        "request.<field>",
        "A field of a request contradicts another or the engine's state.",
        "Correct the request.",
    ),
    ReasonCode(
        "sampling.<parameter>",
        "A sampling parameter is out of its range.",
        "Give a value of the range that the text states.",
    ),
    *DECISIONS,
)

_SINGLE: Final = {entry.code: entry for entry in REASONS if not entry.prefix}
_FAMILIES: Final = tuple(entry for entry in REASONS if entry.prefix)


def find_reason(code: str) -> ReasonCode | None:
    """The entry of a code, a single one before a family; None for a code that is not listed."""
    if code in _SINGLE:
        return _SINGLE[code]
    for family in _FAMILIES:
        if code.startswith(family.prefix) and len(code) > len(family.prefix):
            return family
    return None
