"""Sends every example of a server's OpenAPI document: it must fit its own schema, and so must the answer.

usage: examples.py BASE"""

import json
import sys
import urllib.request

import jsonschema_rs


def main() -> int:
    """Prints a line for each example; 1 if one fails."""
    base = sys.argv[1]
    document = json.load(urllib.request.urlopen(f"{base}/openapi.json"))
    assert document["openapi"].startswith("3.1."), document["openapi"]

    def fits(schema: dict, value: object) -> None:
        jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]}).validate(value)

    count = 0
    for path, item in document["paths"].items():
        for method, operation in item.items():
            url = base + path
            for parameter in operation.get("parameters", []):
                url = url.replace("{%s}" % parameter["name"], parameter["example"])
            content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            bodies = [example["value"] for example in content.get("examples", {}).values()]
            assert bodies or method == "get", f"{path} has no example"
            for body in bodies or [None]:
                if body is not None:
                    fits(content["schema"], body)
                data = None if body is None else json.dumps(body).encode()
                with urllib.request.urlopen(urllib.request.Request(url, data=data, method=method.upper())) as reply:
                    assert reply.status == 200, reply.status
                    kind = reply.headers.get_content_type()
                    schema = operation["responses"]["200"]["content"][kind]["schema"]
                    text = reply.read().decode()
                    fits(schema, json.loads(text) if kind == "application/json" else text)
                count += 1
    print(f"ok: {count} examples fit the document and are answered as it says")
    return 0


if __name__ == "__main__":
    sys.exit(main())
