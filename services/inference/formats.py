"""The fields of a request that say what an answer may look like: tools, their choice, the response format. Pure.

Schemas are bounded here, so that no later step meets one that is too large or too deep. Whether a schema can be compiled is
found out by the grammar itself, with the same error.
"""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple, TypeGuard, cast, get_args

import msgspec

from contracts.errors import InvalidRequest, InvalidSchema, Unsupported, field_error

MAX_TOOLS = 128
MAX_SCHEMA_BYTES = 2**16
MAX_SCHEMA_DEPTH = 64
MAX_VALUES = 2**14
"""Values in all schemas of a request, and in one call's arguments: objects, lists, texts, numbers. Each is walked several times."""
MAX_DESCRIPTION = 2**14
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NUM_SHOWN = 64
_TOOL_DEPTH = 2
"""Levels of a tool around its parameters."""
Json = msgspec.Raw | msgspec.UnsetType
"""A field that is kept as undecoded JSON, or is absent."""
ToolMode = Literal["none", "auto", "required"]
FormatKind = Literal["json_object", "json_schema"]


class ToolFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A function that the model may call; `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: Json = msgspec.UNSET
    strict: bool | None = None


class OfferedTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool as callers send it; only functions are served."""

    type: str
    function: ToolFunction | None = None
    custom: Json = msgspec.UNSET


class NamedFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The name of a function of `tools`."""

    name: str


class AllowedTool(msgspec.Struct, frozen=True):
    """A tool of `tools`, by its name; callers may repeat the rest of its definition."""

    type: str
    function: NamedFunction | None = None


class AllowedTools(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Those tools of `tools` that may be called."""

    mode: str
    tools: list[AllowedTool]


class ToolChoiceForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`tool_choice` as an object."""

    type: str
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None
    custom: Json = msgspec.UNSET


class SchemaForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`response_format.json_schema`."""

    name: str
    schema: Json = msgspec.UNSET
    description: str | None = None
    strict: bool | None = None


class ResponseFormatForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`response_format` as callers send it."""

    type: str
    json_schema: SchemaForm | None = None


class ToolChoice(NamedTuple):
    """Which functions the model may call. `names` None: all of them. `mode` required: it must call at least one."""

    mode: ToolMode = "none"
    names: tuple[str, ...] | None = None

    def as_openai(self) -> Any:
        """The value of `tool_choice` that means the same."""
        if self.names is None or self.mode == "none":
            return self.mode
        if self.mode == "required" and len(self.names) == 1:
            return {"type": "function", "function": {"name": self.names[0]}}
        tools = [{"type": "function", "function": {"name": name}} for name in self.names]
        return {"type": "allowed_tools", "allowed_tools": {"mode": self.mode, "tools": tools}}


class ResponseFormat(NamedTuple):
    """A format that an answer must have. `schema` and `name` belong to `json_schema`; the schema is enforced whatever `strict` says."""

    kind: FormatKind
    schema: dict[str, Any] | None = None
    name: str = ""
    strict: bool | None = None

    def as_openai(self) -> dict[str, Any]:
        """The value of `response_format` that means the same."""
        if self.kind == "json_object":
            return {"type": "json_object"}
        form = {"name": self.name, "schema": self.schema} | ({} if self.strict is None else {"strict": self.strict})
        return {"type": "json_schema", "json_schema": form}


def is_set(content: Json) -> TypeGuard[msgspec.Raw]:
    """Whether a field is there and not null."""
    return isinstance(content, msgspec.Raw) and bytes(content) != b"null"


def check_tools(tools: list[OfferedTool] | None) -> list[dict[str, Any]]:
    """The tools in OpenAI's form, as templates expect them: `parameters` decoded, absent fields left out.

    Raises InvalidRequest, InvalidSchema, Unsupported: too many tools, or one that is not served as it is; `param` names the field.
    """
    if not tools:
        return []
    if len(tools) > MAX_TOOLS:
        raise field_error("tools", f"takes up to {MAX_TOOLS} functions, not {len(tools)}")
    plain, left = list[dict[str, Any]](), MAX_VALUES
    for index, tool in enumerate(tools):
        made = _plain_tool(tool, f"tools[{index}]")
        left -= num_values(made, MAX_SCHEMA_DEPTH + _TOOL_DEPTH, left) or 0
        if left < 0:
            most = f"take up to {MAX_VALUES:,} values in all schemas; send fewer or simpler ones"
            raise field_error("tools", most, InvalidSchema)
        plain.append(made)
    names = [tool["function"]["name"] for tool in plain]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidRequest(f"tools: two functions are called {name!r}", param=f"tools[{index}].function.name")
    return plain


def check_tool_choice(choice: str | ToolChoiceForm | None, tools: list[dict[str, Any]]) -> ToolChoice:
    """Which of the tools may or must be called; without a choice `auto` if there are tools. Raises InvalidRequest, Unsupported."""
    if choice is None:
        return ToolChoice("auto") if tools else ToolChoice()
    found = _mode_of(choice) if isinstance(choice, str) else _named(choice)
    if not tools and (found.mode == "required" or found.names is not None):
        raise field_error("tool_choice", "asks for a call; send `tools` with it")
    known = [tool["function"]["name"] for tool in tools]
    if (unknown := next((name for name in found.names or () if name not in known), None)) is not None:
        shown = unknown[:_NUM_SHOWN]
        raise field_error("tool_choice", f"names {shown!r}, which is not in `tools`; there are {known}")
    return found if tools else ToolChoice()


def check_response_format(form: ResponseFormatForm | None) -> ResponseFormat | None:
    """The format that the answer must have; None for text. Raises InvalidRequest, InvalidSchema, Unsupported: `param` names the field."""
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        if form.json_schema is not None:
            raise InvalidRequest('a json_schema belongs to type "json_schema"', param="response_format.json_schema")
        return ResponseFormat("json_object")
    if form.type != "json_schema":
        known = f"is text, json_object or json_schema, not {form.type[:_NUM_SHOWN]!r}"
        raise field_error("response_format.type", known, Unsupported)
    where, described = "response_format.json_schema", form.json_schema
    if described is None:
        raise field_error(where, "is missing")
    _check_name(described.name, f"{where}.name")
    _check_description(described.description, f"{where}.description")
    schema = _read_schema(described.schema, f"{where}.schema")
    if schema is None:
        any_object = 'for any JSON object send {"type": "json_object"}'
        raise InvalidSchema(f"{where}.schema is missing; {any_object}", param=where)
    return ResponseFormat("json_schema", schema, described.name, described.strict)


def _read_schema(written: Json, where: str) -> dict[str, Any] | None:
    """A JSON schema within the bounds; None if it is absent or null. Raises InvalidSchema."""
    if not is_set(written):
        return None
    if len(bytes(written)) > MAX_SCHEMA_BYTES:
        raise field_error(where, f"takes up to {MAX_SCHEMA_BYTES // 2**10} KiB", InvalidSchema)
    try:
        schema = msgspec.json.decode(written)
    except RecursionError:
        schema = None
    num = None if schema is None else num_values(schema, MAX_SCHEMA_DEPTH, MAX_VALUES)
    if num is None:
        raise field_error(where, f"is nested more than {MAX_SCHEMA_DEPTH} levels deep", InvalidSchema)
    if num > MAX_VALUES:
        raise field_error(where, f"takes up to {MAX_VALUES:,} values; send fewer or simpler ones", InvalidSchema)
    if not isinstance(schema, dict):
        raise field_error(where, f"is a JSON schema: an object, not {type(schema).__name__}", InvalidSchema)
    return schema


def num_values(value: Any, num_levels: int, most: int) -> int | None:
    """How many values there are in a value, itself included, counted up to `most`; None if they nest more than `num_levels` levels deep."""
    level, num = [value], 1
    for _ in range(num_levels + 1):
        level = [one for one in level if one.__class__ is dict or one.__class__ is list]
        if not level or num > most:
            return num
        level = [part for one in level for part in (one.values() if one.__class__ is dict else one)]
        num += len(level)
    return None


def check_values(arguments: Any, where: str) -> None:
    """Raises InvalidRequest if the arguments of a call have too many values, or are nested too deep."""
    num = num_values(arguments, MAX_SCHEMA_DEPTH, MAX_VALUES)
    if num is None or num > MAX_VALUES:
        most = f"nested up to {MAX_SCHEMA_DEPTH} levels deep and have up to {MAX_VALUES:,} values in all"
        raise InvalidRequest(f"{where}: arguments that are objects are {most}", param=where)


def _plain_tool(tool: OfferedTool, where: str) -> dict[str, Any]:
    if tool.type != "function":
        raise Unsupported(
            f'{where}: tools of type {tool.type[:_NUM_SHOWN]!r} are not supported; send {{"type": "function"}}',
            param=f"{where}.type",
        )
    function = tool.function
    if function is None or tool.custom is not msgspec.UNSET:
        raise InvalidRequest(f"{where} takes a `function` and nothing else", param=f"{where}.function")
    _check_name(function.name, f"{where}.function.name")
    _check_description(function.description, f"{where}.function.description")
    parameters = _read_schema(function.parameters, f"{where}.function.parameters")
    fields = {"description": function.description, "parameters": parameters, "strict": function.strict}
    given = {name: value for name, value in fields.items() if value is not None}
    return {"type": "function", "function": {"name": function.name, **given}}


def _check_name(name: str, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise field_error(where, f"takes 1 to 64 letters, digits, underscores and dashes, not {name[:_NUM_SHOWN]!r}")


def _check_description(description: str | None, where: str) -> None:
    if description is not None and len(description) > MAX_DESCRIPTION:
        raise field_error(where, f"takes up to {MAX_DESCRIPTION:,} characters")


def _mode_of(choice: str) -> ToolChoice:
    if choice not in get_args(ToolMode):
        known = "is none, auto, required, a function or allowed_tools"
        raise field_error("tool_choice", f"{known}, not {choice[:_NUM_SHOWN]!r}")
    return ToolChoice(cast("ToolMode", choice))


def _named(choice: ToolChoiceForm) -> ToolChoice:
    if choice.type == "function" and choice.function is not None:
        return ToolChoice("required", (choice.function.name,))
    if choice.type != "allowed_tools" or choice.allowed_tools is None:
        known = "`tool_choice` as an object names a function, or allowed_tools; other types are not supported"
        raise Unsupported(known, param="tool_choice")
    allowed = choice.allowed_tools
    if allowed.mode not in ("auto", "required") or not allowed.tools:
        known = "tool_choice.allowed_tools takes mode auto or required, and at least one tool"
        raise InvalidRequest(known, param="tool_choice")
    names = [tool.function.name for tool in allowed.tools if tool.type == "function" and tool.function is not None]
    if len(names) < len(allowed.tools):
        raise Unsupported("`tool_choice.allowed_tools` takes functions only", param="tool_choice")
    return ToolChoice(cast("ToolMode", allowed.mode), tuple(dict.fromkeys(names)))
