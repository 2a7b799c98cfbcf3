"""The fields of a request that say what an answer may look like: tools, their choice, the response format. Pure.

Schemas are bounded here, so that no later step meets one that is too large or too deep. Whether a schema can be compiled is
found out by the grammar itself, with the same error.
"""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

import msgspec

from contracts.errors import InvalidRequest, InvalidSchema, Unsupported

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
    """A format that an answer must have. `schema` and `name` belong to `json_schema`.

    The schema is always enforced, also if `strict` is false or absent.
    """

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


def check_tools(tools: list[OfferedTool] | None) -> list[dict[str, Any]]:
    """The tools in OpenAI's form, as templates expect them: `parameters` decoded, absent fields left out.

    Raises:
        InvalidRequest: too many tools, or a name is not valid or used twice; `param` names the field.
        InvalidSchema: `parameters` is not a schema within the bounds.
        Unsupported: a tool that is not a function.
    """
    if not tools:
        return []
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"tools takes up to {MAX_TOOLS} functions, not {len(tools)}", param="tools")
    plain, left = list[dict[str, Any]](), MAX_VALUES
    for index, tool in enumerate(tools):
        made = _plain_tool(tool, f"tools[{index}]")
        left -= num_values(made, MAX_SCHEMA_DEPTH + _TOOL_DEPTH, left) or 0
        if left < 0:
            raise InvalidSchema(
                f"tools take up to {MAX_VALUES:,} values in all schemas; send fewer or simpler ones", param="tools"
            )
        plain.append(made)
    names = [tool["function"]["name"] for tool in plain]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidRequest(f"tools: two functions are called {name!r}", param=f"tools[{index}].function.name")
    return plain


def check_tool_choice(choice: str | ToolChoiceForm | None, tools: list[dict[str, Any]]) -> ToolChoice:
    """Which of the tools may or must be called; without a choice `auto` if there are tools.

    Raises:
        InvalidRequest: a value that does not exist, or a function that is not in `tools`; `param` names the field.
        Unsupported: a choice of something other than functions.
    """
    if choice is None:
        return ToolChoice("auto") if tools else ToolChoice()
    found = _mode_of(choice) if isinstance(choice, str) else _named(choice)
    if not tools and (found.mode == "required" or found.names is not None):
        raise InvalidRequest("tool_choice asks for a call; send `tools` with it", param="tool_choice")
    known = [tool["function"]["name"] for tool in tools]
    for name in found.names or ():
        if name not in known:
            raise InvalidRequest(
                f"tool_choice names {name[:_NUM_SHOWN]!r}, which is not in `tools`; there are {known}",
                param="tool_choice",
            )
    return found if tools else ToolChoice()


def check_response_format(form: ResponseFormatForm | None) -> ResponseFormat | None:
    """The format that the answer must have; None for text.

    Raises:
        InvalidRequest: a field is missing or not valid; `param` names it.
        InvalidSchema: the schema is not one, or exceeds the bounds.
        Unsupported: a format that is not served.
    """
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        if form.json_schema is not None:
            raise InvalidRequest('a json_schema belongs to type "json_schema"', param="response_format.json_schema")
        return ResponseFormat("json_object")
    if form.type != "json_schema":
        raise Unsupported(
            f"response_format.type is text, json_object or json_schema, not {form.type[:_NUM_SHOWN]!r}",
            param="response_format.type",
        )
    where, described = "response_format.json_schema", form.json_schema
    if described is None:
        raise InvalidRequest(f"{where} is missing", param=where)
    _check_name(described.name, f"{where}.name")
    _check_description(described.description, f"{where}.description")
    schema = read_schema(described.schema, f"{where}.schema")
    if schema is None:
        raise InvalidSchema(
            f'{where}.schema is missing; for any JSON object send {{"type": "json_object"}}', param=where
        )
    return ResponseFormat("json_schema", schema, described.name, described.strict)


def read_schema(written: Json, where: str) -> dict[str, Any] | None:
    """A JSON schema within the bounds; None if it is absent or null.

    Raises:
        InvalidSchema: it is not an object, too long, nested too deep, or has too many values.
    """
    if isinstance(written, msgspec.UnsetType) or bytes(written) == b"null":
        return None
    if len(bytes(written)) > MAX_SCHEMA_BYTES:
        raise InvalidSchema(f"{where} takes up to {MAX_SCHEMA_BYTES // 2**10} KiB", param=where)
    try:
        schema = msgspec.json.decode(written)
    except RecursionError:
        schema = None
    num = None if schema is None else num_values(schema, MAX_SCHEMA_DEPTH, MAX_VALUES)
    if num is None:
        raise InvalidSchema(f"{where} is nested more than {MAX_SCHEMA_DEPTH} levels deep", param=where)
    if num > MAX_VALUES:
        raise InvalidSchema(f"{where} takes up to {MAX_VALUES:,} values; send fewer or simpler ones", param=where)
    if not isinstance(schema, dict):
        raise InvalidSchema(f"{where} is a JSON schema: an object, not {type(schema).__name__}", param=where)
    return schema


def num_values(value: Any, num_levels: int, most: int) -> int | None:
    """How many values there are in a value, itself included; None if arrays and objects nest more than `num_levels` levels deep.

    It stops counting above `most`.
    """
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
        raise InvalidRequest(
            f"{where}: arguments that are objects are nested up to {MAX_SCHEMA_DEPTH} levels deep and have up to {MAX_VALUES:,} values "
            "in all",
            param=where,
        )


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
    parameters = read_schema(function.parameters, f"{where}.function.parameters")
    fields = {"description": function.description, "parameters": parameters, "strict": function.strict}
    given = {name: value for name, value in fields.items() if value is not None}
    return {"type": "function", "function": {"name": function.name, **given}}


def _check_name(name: str, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{where} takes 1 to 64 letters, digits, underscores and dashes, not {name[:_NUM_SHOWN]!r}", param=where
        )


def _check_description(description: str | None, where: str) -> None:
    if description is not None and len(description) > MAX_DESCRIPTION:
        raise InvalidRequest(f"{where} takes up to {MAX_DESCRIPTION:,} characters", param=where)


def _mode_of(choice: str) -> ToolChoice:
    for mode in ("none", "auto", "required"):
        if choice == mode:
            return ToolChoice(mode)
    raise InvalidRequest(
        f"tool_choice is none, auto, required, a function or allowed_tools, not {choice[:_NUM_SHOWN]!r}",
        param="tool_choice",
    )


def _named(choice: ToolChoiceForm) -> ToolChoice:
    if choice.type == "function" and choice.function is not None:
        return ToolChoice("required", (choice.function.name,))
    if choice.type != "allowed_tools" or choice.allowed_tools is None:
        raise Unsupported(
            "`tool_choice` as an object names a function, or allowed_tools; other types are not supported",
            param="tool_choice",
        )
    allowed = choice.allowed_tools
    if allowed.mode not in ("auto", "required") or not allowed.tools:
        raise InvalidRequest(
            "tool_choice.allowed_tools takes mode auto or required, and at least one tool", param="tool_choice"
        )
    names = [tool.function.name for tool in allowed.tools if tool.type == "function" and tool.function is not None]
    if len(names) < len(allowed.tools):
        raise Unsupported("`tool_choice.allowed_tools` takes functions only", param="tool_choice")
    return ToolChoice("auto" if allowed.mode == "auto" else "required", tuple(dict.fromkeys(names)))
