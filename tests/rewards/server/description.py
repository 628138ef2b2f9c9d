"""The routes of the reward service as an OpenAPI document, to compare a running one with."""

from msgspec.json import schema_components

from r3_openrlhf.rewards.server.bodies import GradeBody

NUMBER, TEXT = {"type": "number"}, {"type": "string"}
NULL = {"type": "null"}
MAYBE_NUMBER = {"anyOf": [NUMBER, NULL]}


def _object(**properties):
    return {"type": "object", "properties": properties, "required": list(properties)}


RESULT = _object(
    verdict={"enum": ["correct", "wrong", "ungraded"]},
    reason=TEXT,
    score=MAYBE_NUMBER,
    reward=MAYBE_NUMBER,
    extracted={"anyOf": [TEXT, NULL]},
    seconds=NUMBER,
    extras={"type": "object"},
)
GRADES = _object(results={"type": "array", "items": RESULT})
STATUS = _object(status=TEXT)
PROBLEM = _object(detail=TEXT)


def _answers(answer, *problems):
    schemas = {200: answer} | dict.fromkeys(problems, PROBLEM)
    return {
        str(status): {"description": "", "content": {"application/json": {"schema": schema}}}
        for status, schema in schemas.items()
    }


def _post(body, answer):
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{body}"}}}
    responses = _answers(answer, 400, 401, 408, 413, 422, 503)
    return {"post": {"requestBody": {"required": True, "content": content}, "responses": responses}}


def description():
    _, components = schema_components([GradeBody], ref_template="#/components/schemas/{name}")
    components["GradeItem"]["properties"]["metadata"] = {"anyOf": [{"type": "object"}, NULL]}
    return {
        "openapi": "3.1.0",
        "info": {"title": "R³ reward service", "version": "0"},
        "components": {"schemas": components},
        "paths": {
            "/grade": _post("GradeBody", GRADES),
            "/health": {"get": {"responses": _answers(_object(status=TEXT, pending=NUMBER))}},
            "/ready": {"get": {"responses": _answers(STATUS, 503)}},
        },
    }
