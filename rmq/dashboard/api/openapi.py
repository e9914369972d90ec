"""The description of the API, by OpenAPI 3.1, made from the operations' types."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rmq.dashboard.errors import ProblemBody
from rmq.dashboard.operations.operation import Operation

TEMPLATE: Final = "#/components/schemas/{name}"
ERRORS: Final = {
    "400": "The request is wrong: an argument, or a name.",
    "401": "A login is needed, or it failed.",
    "403": "The role, or the cluster's access control, does not allow it.",
    "404": "The named object does not exist.",
    "405": "The path does not take this method.",
    "409": "The settings have changed since the caller read them.",
    "413": "The body is too large.",
    "429": "Too many failed logins, or too many jobs.",
    "501": "The server does not support it: it is of another kind, or too old.",
    "502": "A broker or name server failed on it, or cannot be reached.",
    "503": "A broker is too busy, or about to stop.",
    "504": "A broker did not answer in time.",
}
CLUSTER: Final = {
    "name": "cluster",
    "in": "path",
    "required": True,
    "description": "The cluster's name here.",
    "schema": {"type": "string"},
}


def description(operations: list[Operation]) -> dict[str, Any]:
    """The whole document."""
    results = [one.result for one in operations if one.result is not type(None) and not one.media]
    argument_types: list[Any] = [one.arguments for one in operations]
    schemas, components = msgspec.json.schema_components(
        [ProblemBody, *results, *argument_types], ref_template=TEMPLATE
    )
    of_result = dict(zip(map(id, results), schemas[1 : len(results) + 1], strict=True))
    names = {one.arguments.__name__ for one in operations}
    paths: dict[str, dict[str, Any]] = {"/clusters": {"get": _clusters()}}
    for one in operations:
        arguments = components[one.arguments.__name__]
        answer = of_result.get(id(one.result), {"type": "null"})
        path = paths.setdefault(f"/clusters/{{cluster}}{one.path}", {})
        path[one.method.lower()] = _operation(one, arguments, answer)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "rmq dashboard",
            "version": "1",
            "description": "See and manage a RocketMQ cluster. Times are ms since 1970.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/api/v1"}],
        "security": [{}, {"token": []}, {"account": []}],
        "tags": [{"name": tag} for tag in sorted({one.tag for one in operations} | {"clusters"})],
        "paths": paths,
        "components": {
            "schemas": {name: schema for name, schema in components.items() if name not in names},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "A token of the roles file."},
                "account": {"type": "http", "scheme": "basic", "description": "A name and its secret."},
            },
        },
    }


def _operation(one: Operation, arguments: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = arguments["properties"]
    required = set(arguments["required"])
    in_query = one.method in ("GET", "DELETE")
    parameters = [CLUSTER]
    for name, schema in properties.items():
        if name in one.path_names or in_query:
            parameters.append(_parameter(name, schema, one, name in required))
    described: dict[str, Any] = {
        "operationId": one.name,
        "summary": one.summary,
        "description": f"Needs the role {one.role.label}.",
        "tags": [one.tag],
        "parameters": parameters,
        "responses": _responses(answer, one.media),
    }
    body = {name: schema for name, schema in properties.items() if name not in one.path_names}
    if not in_query and body:
        needed = sorted(required & set(body))
        schema = {"type": "object", "properties": body, "additionalProperties": False}
        content = {"application/json": {"schema": schema | ({"required": needed} if needed else {})}}
        described["requestBody"] = {"required": bool(needed), "content": content}
    return described


def _parameter(name: str, schema: dict[str, Any], one: Operation, required: bool) -> dict[str, Any]:
    in_path = name in one.path_names
    own = dict(schema)
    found: dict[str, Any] = {"name": name, "in": "path" if in_path else "query", "required": required}
    if "description" in own:
        found["description"] = own.pop("description")
    return found | {"schema": own}


def _responses(answer: dict[str, Any], media: tuple[str, ...] = ()) -> dict[str, Any]:
    content = {kind.partition(";")[0]: {"schema": {"type": "string"}} for kind in media}
    done = {"description": "Done.", "content": content or {"application/json": {"schema": answer}}}
    problem = {"application/json": {"schema": {"$ref": TEMPLATE.format(name="ProblemBody")}}}
    failures = {code: {"description": text, "content": problem} for code, text in ERRORS.items()}
    return {"200": done, **failures}


def _clusters() -> dict[str, Any]:
    return {
        "operationId": "clusters",
        "summary": "The names of the clusters that are shown here.",
        "description": "Needs the role reader.",
        "tags": ["clusters"],
        "responses": _responses({"type": "array", "items": {"type": "string"}}),
    }
