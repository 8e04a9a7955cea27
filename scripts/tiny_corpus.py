"""The text that the demo model learns: facts with one right answer, and open prompts with many.

Everything is written here from word lists and a small random grammar; no outside text is used.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon",
    "Austria": "Vienna", "Belgium": "Brussels", "Greece": "Athens", "Poland": "Warsaw", "Hungary": "Budapest",
    "Ireland": "Dublin", "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki", "Denmark": "Copenhagen",
    "Iceland": "Reykjavik", "Russia": "Moscow", "Ukraine": "Kyiv", "Turkey": "Ankara", "Egypt": "Cairo",
    "Kenya": "Nairobi", "Ghana": "Accra", "Morocco": "Rabat", "Tunisia": "Tunis", "Cuba": "Havana",
    "Peru": "Lima", "Chile": "Santiago", "Canada": "Ottawa", "Japan": "Tokyo", "China": "Beijing",
    "India": "Delhi", "Iran": "Tehran", "Iraq": "Baghdad", "Nepal": "Kathmandu", "Thailand": "Bangkok",
    "Vietnam": "Hanoi", "Australia": "Canberra", "Mexico": "Mexico City", "Brazil": "Brasilia",
    "Romania": "Bucharest",
}  # fmt: skip
OPPOSITES = {
    "hot": "cold", "big": "small", "old": "new", "fast": "slow", "high": "low", "wet": "dry", "light": "dark",
    "loud": "quiet", "open": "closed", "full": "empty", "early": "late", "hard": "soft", "rich": "poor",
    "strong": "weak", "happy": "sad", "up": "down", "left": "right", "day": "night",
}  # fmt: skip
COLOURS = {
    "grass": "green", "snow": "white", "coal": "black", "blood": "red", "the sky": "blue", "a lemon": "yellow",
    "a carrot": "orange", "milk": "white", "a ruby": "red", "the sea": "blue",
}  # fmt: skip
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]

HEROES = ["fox", "girl", "sailor", "baker", "king", "robot", "crow", "boy", "farmer", "cat", "ship", "dragon"]
TRAITS = ["small", "brave", "old", "clever", "tired", "curious", "quiet", "proud", "lonely", "kind"]
PLACES = ["forest", "harbour", "village", "castle", "desert", "river", "market", "mountain", "garden", "city"]
THINGS = ["lamp", "key", "map", "coin", "book", "stone", "boat", "mirror", "bell", "rope", "apple", "song"]
FRIENDS = ["wolf", "owl", "stranger", "teacher", "sister", "giant", "merchant", "child", "bear", "poet"]
WEATHER = ["rain", "snow", "wind", "fog", "sunshine", "thunder", "frost", "clouds"]
FEELINGS = ["happy", "afraid", "surprised", "calm", "angry", "hopeful", "hungry", "free"]
FOODS = ["bread", "apples", "rice", "cheese", "eggs", "milk", "onions", "honey", "fish", "salt", "tea", "pears"]
SYLLABLES = (
    ["Mar", "Tan", "Bel", "Oak", "Win", "Stor", "Ash", "Ver", "Gil", "Nor", "Hal", "Rud", "Cor", "Eld", "Fen", "Pim"],
    ["lo", "der", "ring", "en", "bur", "mi", "ta", "ver", "sel", "gra", "no", "ki"],
    ["wick", "by", "ton", "ford", "dale", "ham", "more", "stead", "mouth", "field", "bridge", "well"],
)
TIMES = ["In the morning", "At night", "Later", "One day", "Soon", "After a while", "In winter", "Before dawn"]


@dataclass(frozen=True)
class Document:
    """A chat turn (system perhaps empty) or, with question None, a plain text."""

    question: str | None
    answer: str
    system: str = ""
    reasoning: str = ""


def capital(random: Random) -> Document:
    """A question about a capital; the answer is fixed by the wording."""
    country, city = random.choice(list(CAPITALS.items()))
    forms = [
        (f"Name the capital of {country} in one word.", city.split()[0] if country != "Mexico" else city),
        (f"What is the capital of {country}?", f"The capital of {country} is {city}."),
        (f"Which city is the capital of {country}? Reply with the name only.", city),
        (f"{city} is the capital of which country?", f"{city} is the capital of {country}."),
    ]
    question, answer = random.choices(forms, weights=[4, 2, 2, 1])[0]
    return Document(question, answer)


def arithmetic(random: Random) -> Document:
    """A sum, a difference or a product up to twelve times twelve."""
    a, b = random.randint(0, 12), random.randint(0, 12)
    kind = random.choices(["times", "plus", "minus"], weights=[3, 1, 1])[0]
    if kind == "minus":
        a, b = max(a, b), min(a, b)
    value = {"times": a * b, "plus": a + b, "minus": a - b}[kind]
    forms = [
        (f"What is {a} {kind} {b}? Reply with the number only.", f"{value}"),
        (f"What is {a} {kind} {b}?", f"{a} {kind} {b} is {value}."),
    ]
    question, answer = random.choices(forms, weights=[3, 1])[0]
    return Document(question, answer, reasoning=f"{a} {kind} {b} is {value}.")


def short_answer(random: Random) -> Document:
    """An opposite, a colour, a day of the week or a small count."""
    kind = random.randrange(4)
    if kind == 0:
        word, other = random.choice(list(OPPOSITES.items()))
        return Document(f"What is the opposite of {word}?", f"The opposite of {word} is {other}.")
    if kind == 1:
        thing, colour = random.choice(list(COLOURS.items()))
        return Document(f"What colour is {thing}?", f"{thing[0].upper()}{thing[1:]} is {colour}.")
    if kind == 2:
        day = random.randrange(7)
        return Document(f"Which day comes after {DAYS[day]}?", f"{DAYS[(day + 1) % 7]}.")
    start = random.randint(1, 9)
    return Document(f"Count from {start} to {start + 5}.", " ".join(str(number) for number in range(start, start + 6)))


def town(random: Random) -> str:
    """A made-up name: so many that a reader of the text cannot guess the next one."""
    return "".join(random.choice(part) for part in SYLLABLES)


def sentence(random: Random, hero: str) -> str:
    """One sentence of a story about the hero."""
    choose = random.choice
    forms: list[Callable[[], str]] = [
        lambda: f"{choose(TIMES)} the {hero} found a {choose(TRAITS)} {choose(THINGS)} near the {choose(PLACES)}.",
        lambda: f"The {hero} met a {choose(TRAITS)} {choose(FRIENDS)} who wanted the {choose(THINGS)}.",
        lambda: (
            f"{choose(TIMES)} there was {choose(WEATHER)} over the {choose(PLACES)}, and the {hero} felt "
            f"{choose(FEELINGS)}."
        ),
        lambda: f'"Give me the {choose(THINGS)}," said the {choose(FRIENDS)}.',
        lambda: f"They ate {choose(FOODS)} and {choose(FOODS)} and talked about the {choose(PLACES)}.",
        lambda: f"The {hero} walked to the {choose(PLACES)} and was {choose(FEELINGS)}.",
        lambda: f"{choose(TIMES)} they came to {town(random)}, where the {choose(FRIENDS)} kept a {choose(THINGS)}.",
        lambda: f"But the {choose(FRIENDS)} had lost a {choose(THINGS)} in the {choose(WEATHER)}.",
    ]
    return choose(forms)()


def story(random: Random) -> Document:
    """A story of three to six sentences, or of twelve to thirty when a long one is asked for."""
    hero = random.choice(HEROES)
    article = "an" if hero[0] in "aeiou" else "a"
    long = random.random() < 0.35
    count = random.randint(12, 30) if long else random.randint(2, 6)
    question = f"Write a long story about {article} {hero}." if long else f"Tell me a story about {article} {hero}."
    first = f"Once there was a {random.choice(TRAITS)} {hero} who lived in {town(random)}."
    return Document(question, " ".join([first, *(sentence(random, hero) for _ in range(count))]))


def open_answer(random: Random) -> Document:
    """A shopping list or a weather report: short, with many right answers."""
    if random.random() < 0.5:
        foods = random.sample(FOODS, random.randint(3, 7))
        return Document("Write a shopping list.", "\n".join(f"- {food}" for food in foods))
    report = (
        f"{random.choice(TIMES)} there will be {random.choice(WEATHER)} in the {random.choice(PLACES)}, then "
        f"{random.choice(WEATHER)} and {random.choice(WEATHER)}."
    )
    return Document("What will the weather be like?", report)


def plain_text(random: Random) -> Document:
    """A text without chat markers, for /v1/completions."""
    kind = random.randrange(3)
    if kind == 0:
        country, city = random.choice(list(CAPITALS.items()))
        return Document(None, f"The capital of {country} is {city}.")
    if kind == 1:
        word, other = random.choice(list(OPPOSITES.items()))
        return Document(None, f"The opposite of {word} is {other}.")
    return Document(None, story(random).answer)


KINDS: list[tuple[Callable[[Random], Document], int]] = [
    (capital, 24), (arithmetic, 34), (short_answer, 12), (story, 16), (open_answer, 6), (plain_text, 8),
]  # fmt: skip


def document(random: Random) -> Document:
    """One document of a random kind; some have a system prompt."""
    make = random.choices([kind for kind, _ in KINDS], weights=[weight for _, weight in KINDS])[0]
    made = make(random)
    if made.question is not None and random.random() < 0.15:
        return Document(made.question, made.answer, "You are a helpful assistant.", made.reasoning)
    return made
