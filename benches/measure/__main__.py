"""Measurements of the built library, beside other programs where they are given.

    python3 benches/measure NAME [OPTIONS]      NAME --help lists the options
"""
import argparse
import importlib
import os
import sys

from engines import ROOT

NAMES = {
    "chats": "finding the format of a chat template, the grammar of tools, and polls",
    "cores": "plain decoding, prompts and a pair of models with 1, 2, 4, ... threads, and why more of them stop helping",
    "decisions": "`choices` beside scoring each text alone",
    "depth": "prompts, and decoding after long contexts, in one slot and several, beside llama.cpp and ik_llama.cpp",
    "divergence": "how far the distributions of weight formats are from those of F32 weights, here and with llama.cpp",
    "embeddings": "texts one by one, together in one call, and one long text",
    "encoders": "seconds of encoders of pictures in F16 and Q8_0, and how far their answers are apart",
    "exactness": "outputs that depend on speculation, other requests or the level of instructions, in each format of weights",
    "extraction": "fields of invoices, letters and tables that a model reads rightly, with the schema in the prompt and without",
    "formats": "decoding and prompts in each format of weights, beside llama.cpp and ik_llama.cpp",
    "hybrids": "drafts of a chosen quality over none, with hybrids of random weights",
    "loads": "loads in memory and from the disk, and the memory they need, beside llama.cpp and ik_llama.cpp",
    "logits": "the cost of a logits callback",
    "minds": "conversations that come back from memory, first tokens of prepared turns, and questions in bulk",
    "polls": "how long submits and polls of chats take at most, beside busy programs",
    "schemas": "JSONSchemaBench: schemas that compile, instances that are judged rightly, and the cost of masks, beside llguidance",
    "slots": "several requests at once, beside llama-server",
    "tasks": "five tasks with draft models, rules of verification and drafters of the text, beside llama-server",
}


def main():
    parser = argparse.ArgumentParser(prog="python3 benches/measure", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(metavar="NAME", required=True)
    for name, summary in NAMES.items():
        # Only the measurement that runs is imported.
        if name in sys.argv[1:2] or not set(NAMES) & set(sys.argv[1:2]):
            module = importlib.import_module(name)
            command = commands.add_parser(name, help=summary, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
            command.add_argument("--library", default=os.path.join(ROOT, "target/release/libforedraft.so"))
            module.options(command)
            command.set_defaults(run=module.run)
    args = parser.parse_args()
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())
