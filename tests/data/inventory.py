"""Keeps count of what a small shop has in stock."""
import json
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Item:
    """One kind of thing that the shop sells."""
    name: str
    price: float
    count: int = 0
    tags: list[str] = field(default_factory=list)

    def value(self) -> float:
        """What all of these in stock would sell for."""
        return self.price * self.count


class Inventory:
    """All items, by their names."""

    def __init__(self) -> None:
        self.items: dict[str, Item] = {}

    def add(self, item: Item) -> None:
        """Adds an item, or more of one that is there already."""
        known = self.items.get(item.name)
        if known is None:
            self.items[item.name] = item
        else:
            known.count += item.count

    def sell(self, name: str, count: int = 1) -> float:
        """Takes items out of stock and returns what they cost."""
        item = self.items.get(name)
        if item is None:
            raise KeyError(f"no such item: {name}")
        if item.count < count:
            raise ValueError(f"only {item.count} of {name} are left")
        item.count -= count
        return item.price * count

    def total(self) -> float:
        """The value of everything in stock."""
        return sum(item.value() for item in self.items.values())

    def with_tag(self, tag: str) -> list[Item]:
        """The items that have a tag, the cheapest first."""
        found = [item for item in self.items.values() if tag in item.tags]
        return sorted(found, key=lambda item: item.price)

    def save(self, path: Path) -> None:
        """Writes the inventory to a JSON file."""
        records = [vars(item) for item in self.items.values()]
        path.write_text(json.dumps(records, indent=2))

    @classmethod
    def load(cls, path: Path) -> "Inventory":
        """Reads an inventory from a JSON file."""
        inventory = cls()
        for record in json.loads(path.read_text()):
            inventory.add(Item(**record))
        return inventory


def report(inventory: Inventory) -> str:
    """One line for each item, and the total."""
    lines = []
    for item in sorted(inventory.items.values(), key=lambda item: item.name):
        lines.append(f"{item.name:20} {item.count:5} x {item.price:8.2f} = {item.value():10.2f}")
    lines.append(f"{'total':20} {inventory.total():28.2f}")
    return "\n".join(lines)
