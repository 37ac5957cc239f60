"""Fields of invoices, letters and tables that a model reads rightly into JSON, with the schema in the prompt and without.

    python3 benches/measure extraction TARGET [--draft DRAFT] [--documents 40] [--first 0] [--misread]

The documents are made here, from a fixed seed, together with what is in them. Each is asked for twice, greedily, with the same `response_format`: with
`"schema_in_prompt": false`, so that only the grammar knows the schema, and with the default. A field is right if it equals what is in the document; of a table
each cell is one. --misread prints the wrong ones.
"""
import json
import os
import random

from engines import Engine, at_once, library

MONTHS = "January February March April May June July August September October November December".split()
PEOPLE = ["Ada Brandt", "Tom Okafor", "Mira Lindqvist", "Jonas Weber", "Elena Rossi", "Paul Novak", "Sofia Marin", "Henry Walsh", "Ines Duarte", "Karl Jensen"]
FIRMS = ["Harbour Tools Ltd", "Bergmann & Sons", "Green Valley Farm", "Northlight Studio", "Kestrel Logistics", "Blue Door Books", "Alpine Bikes GmbH", "Oakwood Dental"]
TOWNS = ["Leeds", "Graz", "Porto", "Aarhus", "Ghent", "Basel", "Turin", "Malmo"]
GOODS = ["ladder", "paint, white, 5 l", "bicycle pump", "oak shelf", "garden hose", "desk lamp", "printer paper", "coffee beans, 1 kg", "tool box", "rain jacket"]
FRUITS = ["Apples", "Pears", "Plums", "Cherries", "Quinces", "Walnuts", "Currants", "Figs"]
DATE = {"type": "string", "format": "date"}


def made_of(properties):
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


INVOICE = made_of({
    "number": {"type": "string", "description": "as printed"},
    "issued": DATE,
    "due": DATE,
    "seller": {"type": "string"},
    "buyer": {"type": "string"},
    "currency": {"enum": ["EUR", "USD", "GBP", "CHF"]},
    "tax_percent": {"type": "number"},
    "total": {"type": "number", "description": "with tax"},
    "n_positions": {"type": "integer", "description": "number of different articles"},
    "is_paid": {"type": "boolean"},
})
LETTER = made_of({
    "sender": {"type": "string", "description": "name only"},
    "recipient": {"type": "string", "description": "name only"},
    "written": DATE,
    "kind": {"enum": ["complaint", "invitation", "application", "cancellation"]},
    "reply_by": {"anyOf": [DATE, {"type": "null"}], "description": "null if the letter names no date"},
    "phone": {"type": "string", "pattern": "^\\+[0-9]{8,14}$", "description": "digits only behind the +"},
})
TABLE = made_of({
    "month": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}$"},
    "rows": {"type": "array", "items": made_of({
        "article": {"type": "string"},
        "crates": {"type": "integer", "description": "sold ones"},
        "cents_per_crate": {"type": "integer"},
        "is_organic": {"type": "boolean"},
    })},
    "best": {"type": "string", "description": "the article with the most crates"},
})


def day(random, year=2024):
    return year, random.randint(1, 12), random.randint(1, 28)


def iso(date):
    return "{:04}-{:02}-{:02}".format(*date)


def spoken(date, form):
    year, month, day = date
    return [f"{day} {MONTHS[month - 1]} {year}", f"{MONTHS[month - 1]} {day}, {year}", f"{day:02}.{month:02}.{year}", f"{year}/{month:02}/{day:02}"][form]


def invoice(random):
    issued, form = day(random), random.randrange(4)
    due = (issued[0] + (issued[1] == 12), issued[1] % 12 + 1, issued[2])
    seller, buyer = random.sample(FIRMS, 2)
    currency, sign = random.choice([("EUR", "€"), ("USD", "US$"), ("GBP", "£"), ("CHF", "SFr.")])
    number = random.choice([f"R-{random.randint(1000, 9999)}", f"2024/{random.randint(100, 999)}", f"INV{random.randint(10000, 99999)}"])
    positions = [(goods, random.randint(1, 9), random.randint(300, 9900)) for goods in random.sample(GOODS, random.randint(2, 4))]
    net = sum(count * cents for _, count, cents in positions)
    percent = random.choice([7, 19, 20, 8.1])
    total = net + round(net * percent / 100)
    is_paid = random.random() < 0.4
    amount = lambda cents: f"{sign} {cents // 100}.{cents % 100:02}"
    lines = [f"{count} x {goods}  {amount(cents)} each  {amount(count * cents)}" for goods, count, cents in positions]
    text = "\n".join([
        seller, f"{random.choice(TOWNS)}, {spoken(issued, form)}", "", f"Bill to: {buyer}, {random.choice(TOWNS)}", f"Invoice no. {number}", "", *lines, "",
        f"Subtotal {amount(net)}", f"VAT {percent} % {amount(total - net)}", f"Amount {amount(total)}", "",
        "Received with thanks, nothing is left to pay." if is_paid else f"Please pay by {spoken(due, form)}.",
        *([f"(It was due on {spoken(due, form)}.)"] if is_paid else []),
    ])
    return "invoice", INVOICE, text, {
        "number": number, "issued": iso(issued), "due": iso(due), "seller": seller, "buyer": buyer, "currency": currency, "tax_percent": percent,
        "total": total / 100, "n_positions": len(positions), "is_paid": is_paid,
    }


def letter(random):
    written, form = day(random), random.randrange(4)
    sender, recipient = random.sample(PEOPLE, 2)
    kind, body = random.choice([
        ("complaint", "the dishwasher that your shop delivered last week leaks, and nobody has answered my two calls. I expect a replacement."),
        ("invitation", "we open our new workshop with music and soup, and it would be a pleasure to have you and your family with us."),
        ("application", "I read that you look for a carpenter. I have built stairs and windows for eleven years and would like to work for you."),
        ("cancellation", "I no longer need the storage room and end my contract with you at the next possible date."),
    ])
    reply = (written[0] + (written[1] == 12), written[1] % 12 + 1, written[2]) if random.random() < 0.6 else None
    phone = f"+{random.choice(['44', '49', '45', '351'])}{random.randint(10**8, 10**9 - 1)}"
    text = "\n".join([
        f"{sender}, {random.randint(1, 90)} Mill Lane, {random.choice(TOWNS)}", f"Tel. {phone[:3]} {phone[3:6]} {phone[6:9]} {phone[9:]}", "",
        f"To {recipient}, {random.choice(TOWNS)}", spoken(written, form), "", f"Dear {recipient.split()[0]},", body[0].upper() + body[1:],
        f"Please let me know by {spoken(reply, form)}." if reply else "I am always glad to hear from you.", "", "Yours sincerely,", sender,
    ])
    return "letter", LETTER, text, {
        "sender": sender, "recipient": recipient, "written": iso(written), "kind": kind, "reply_by": iso(reply) if reply else None, "phone": phone,
    }


def table(random):
    year, month, _ = day(random, random.randint(2021, 2025))
    counts = random.sample(range(3, 90), 4)
    rows = [
        {"article": article, "crates": crates, "cents_per_crate": 10 * random.randint(40, 400), "is_organic": random.random() < 0.5}
        for article, crates in zip(random.sample(FRUITS, random.randint(3, 4)), counts)
    ]
    cells = [
        [row["article"], str(row["crates"] + 5), str(row["crates"]), f"{row['cents_per_crate'] / 100:.2f}", "yes" if row["is_organic"] else "no"] for row in rows
    ]
    head = ["", "crates delivered", "crates sold", "price per crate (EUR)", "organic"]
    text = "\n".join([f"Market stall, {MONTHS[month - 1]} {year}", "", *(" | ".join(line) for line in [head, *cells])])
    best = max(rows, key=lambda row: row["crates"])["article"]
    return "table", TABLE, text, {"month": f"{year}-{month:02}", "rows": rows, "best": best}


def fields(value, name=""):
    """The values in a document, by their places."""
    if isinstance(value, dict):
        return {place: leaf for key, inner in value.items() for place, leaf in fields(inner, f"{name}.{key}").items()}
    if isinstance(value, list):
        return {place: leaf for index, inner in enumerate(value) for place, leaf in fields(inner, f"{name}[{index}]").items()}
    return {name.strip("."): value}


def options(parser):
    parser.add_argument("target")
    parser.add_argument("--draft")
    parser.add_argument("--documents", type=int, default=40)
    parser.add_argument("--first", type=int, default=0, help="the number of the first document that is read, from 0")
    parser.add_argument("--misread", action="store_true")


def run(args):
    source = random.Random(61)
    documents = [(invoice, letter, table)[index % 3](source) for index in range(args.documents)]
    ways = {"without the schema": {"schema_in_prompt": False}, "with it": {}}
    read_ones = documents[args.first:]
    right, whole, tokens = ({(way, kind): 0 for way in ways for kind, *_ in read_ones} for _ in range(3))
    n_fields = {kind: sum(len(fields(inside)) for other, _, _, inside in read_ones if other == kind) for kind, *_ in read_ones}
    with Engine(library(args.library), model=args.target, model_draft=args.draft, n_ctx=2048 * len(ways), n_parallel=len(ways)) as engine:
        engine.wait_for_panels()
        for index, (kind, schema, text, inside) in list(enumerate(documents))[args.first:]:
            request = {
                "messages": [{"role": "user", "content": f"Read this {kind} and answer with its data as JSON.\n\n{text}"}],
                "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}, "n_predict": 600, "temperature": 0, "repeat_penalty": 1,
                "speculative": args.draft is not None,
            }
            answers = at_once(engine.complete, [{**request, **more} for more in ways.values()])
            for way, answer in zip(ways, answers):
                try:
                    read = fields(json.loads(answer["content"]))
                except ValueError:
                    read = {}
                wrong = {place: read.get(place) for place, value in fields(inside).items() if place not in read or read[place] != value}
                right[way, kind] += len(fields(inside)) - len(wrong)
                whole[way, kind] += read == fields(inside)
                tokens[way, kind] += answer["tokens_evaluated"]
                if args.misread:
                    for place, value in wrong.items():
                        print(f"{kind} {index}, {way}: {place} is {value!r} instead of {fields(inside)[place]!r}", flush=True)
    kinds = [*n_fields]
    n = {kind: sum(other == kind for other, *_ in read_ones) for kind in kinds}
    print(f"{os.path.basename(args.target)}, {len(read_ones)} documents")
    print("| | " + " | ".join(f"{kind}: fields right, whole, tokens of a prompt" for kind in kinds) + " | all fields |")
    for way in ways:
        cells = [f"{right[way, kind]} of {n_fields[kind]}, {whole[way, kind]} of {n[kind]}, {tokens[way, kind] // n[kind]}" for kind in kinds]
        total, most = sum(right[way, kind] for kind in kinds), sum(n_fields.values())
        print(f"| {way} | " + " | ".join(cells) + f" | {total} of {most} ({100 * total / most:.1f} %) |")
