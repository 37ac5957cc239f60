from foredraft import Engine, ForedraftError, InvalidRequestError, ModelError

# ANCHOR: errors
try:
    Engine("models/missing.gguf", log_level="none")
except ModelError as error:
    print(error.code, "-", error)

with Engine("models/stories-target.gguf") as engine:
    try:
        engine.complete("Once", top_p=1.5)
    except InvalidRequestError as error:
        print(error.code, "-", error)  # top_p: expected a number from 0 to 1, got 1.5
    answer = engine.complete("Once", n_predict=4, temprature=0)
    print(answer["warnings"])  # unknown keys are no errors: temprature (did you mean "temperature"?)
# ANCHOR_END: errors
assert issubclass(ModelError, ForedraftError)
