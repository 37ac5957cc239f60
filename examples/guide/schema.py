from foredraft import Engine

engine = Engine("models/stories-target.gguf", model_draft="models/stories-draft.gguf")
# ANCHOR: schema
schema = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
}
answer = engine.complete("Once upon a time there was a child.", schema=schema, n_predict=200, temperature=0)
child = answer.json()
print(child["name"], child["age"])
# ANCHOR_END: schema
engine.close()
