"""Word lists of the synthetic corpus: the stories' characters, their homes, finds and food.

Every list is a tuple, so that a seeded ``random.Random`` draws the same words in the same order everywhere.
"""

from __future__ import annotations

GIRLS = (
    "Lily", "Anna", "Mia", "Emma", "Rosa", "Ella", "Nora", "Ruby", "Clara", "Ivy", "Maya", "Zoe", "Lucy", "Alice",
    "Hazel", "Molly", "Sara", "Tina", "Eva", "Luna", "Daisy", "Amy", "Grace", "Nina", "Olive", "Penny", "Jane",
    "Sophie", "Wendy", "Kate",
)  # fmt: skip
BOYS = (
    "Tom", "Ben", "Max", "Sam", "Leo", "Jack", "Finn", "Oscar", "Hugo", "Theo", "Noah", "Tim", "Peter", "Felix",
    "Milo", "Adam", "Paul", "Otto", "Henry", "Jasper", "Luke", "Rudi", "Carl", "Bobby", "Eddie", "Toby", "Victor",
    "Ned", "George", "Simon",
)  # fmt: skip

# Parts of syllables for made-up names: they teach the model to copy a name that it has never seen.
ONSETS = ("", "b", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "z", "br", "dr", "gr")
VOWELS = ("a", "e", "i", "o", "u", "a", "e", "i", "o", "ai", "ee", "oo")
CODAS = ("", "", "", "", "n", "l", "r", "s", "x", "ck", "m", "nd")

ADJECTIVES = (
    "little", "brave", "curious", "kind", "clever", "shy", "cheerful", "gentle", "small", "quiet", "lively", "young",
    "friendly", "careful", "hungry", "sleepy", "playful", "proud", "patient", "busy",
)  # fmt: skip

ANIMALS = (
    "fox", "rabbit", "bear", "mouse", "hedgehog", "squirrel", "owl", "frog", "duck", "cat", "dog", "pony", "goat",
    "turtle", "beaver", "otter", "wolf", "deer", "badger", "lamb", "pig", "hen", "elephant", "monkey", "lion",
    "penguin", "ant", "bee", "snail", "crow",
)  # fmt: skip
FANTASY = (
    "dragon", "robot", "princess", "prince", "wizard", "witch", "giant", "pirate", "fairy", "unicorn", "knight",
    "mermaid", "king", "queen", "ghost", "elf", "sailor", "baker", "farmer", "painter", "dinosaur", "snowman",
)  # fmt: skip
FEMALE_KINDS = frozenset(("princess", "witch", "fairy", "mermaid", "queen", "hen"))
MALE_KINDS = frozenset(("prince", "wizard", "king", "snowman"))

HOMES = {
    "child": (
        "in a small house near the forest", "in a village by the river", "in a yellow house on a hill",
        "in a busy town", "on a farm with many animals", "in a little house by the sea",
        "on a quiet street with old trees", "in a cottage at the edge of the woods",
        "in a house with a blue door", "in a valley between two mountains",
    ),
    "animal": (
        "in a green meadow", "in a cosy hole under an old oak", "in the middle of a big forest", "in a sunny garden",
        "in a warm barn", "in a quiet valley", "by a little pond", "in the tall grass near a river",
        "in a field full of flowers", "in a park in the middle of the town",
    ),
    "fantasy": (
        "in a castle on a hill", "in a tall tower by the sea", "behind a waterfall", "in a far away land",
        "on a small island", "in a house made of stone", "in a valley full of mist", "in a kingdom of snow",
        "in a forest where the trees could sing", "on an old ship in the harbour",
    ),
}  # fmt: skip

COLOURS = ("red", "blue", "green", "yellow", "white", "black", "silver", "golden", "orange", "purple", "pink", "brown")
PLACES = (
    "the park", "the forest", "the river", "the market", "the garden", "the beach", "the old bridge", "the meadow",
    "the hill", "the lake", "the mill", "the orchard",
)  # fmt: skip
HIDING_PLACES = (
    "under a big leaf", "behind the old barn", "beside the well", "inside a hollow tree", "under the bench",
    "between two stones", "in the tall grass", "on top of a fence", "under the bridge", "behind a rose bush",
    "next to the mill", "at the bottom of a basket",
)  # fmt: skip
WEATHER = (
    "One sunny morning", "One cold morning", "One windy day", "One rainy afternoon", "One warm evening",
    "One day", "One fine day", "Early one morning", "One snowy morning", "One quiet evening",
)  # fmt: skip
THINGS = (
    "ball", "kite", "hat", "scarf", "drum", "boat", "lamp", "key", "bell", "book", "ring", "coin", "button", "basket",
    "box", "cup", "doll", "flute", "shoe", "umbrella", "map", "feather", "stone", "shell", "letter", "clock", "mirror",
    "spoon", "star", "flower", "apple", "banana", "cake", "pumpkin", "egg", "balloon", "train", "car", "spaceship",
    "puppet", "blanket", "bottle", "brush", "candle", "chair", "coat", "crown", "guitar", "ladder", "pencil", "pillow",
    "rocket", "sock", "sword", "teddy bear", "trumpet", "violin", "wheel", "whistle", "bicycle", "camera", "bag",
)  # fmt: skip
FOODS = (
    "apples", "plums", "bread", "cheese", "berries", "nuts", "carrots", "pears", "cake", "pancakes", "cherries",
    "grapes", "corn", "beans", "cookies", "peaches", "mushrooms", "radishes", "biscuits", "lemons",
)  # fmt: skip
LIKES = (
    "books", "kites", "music", "stars", "trains", "boats", "stones", "flowers", "games", "songs", "drums", "puzzles",
    "trees", "snow", "rain", "maps", "shells", "bells", "soup", "honey", "rice", *FOODS,
)  # fmt: skip
PETS = (
    "cat", "dog", "rabbit", "mouse", "pony", "duck", "goat", "fox", "owl", "turtle", "hen", "parrot", "frog", "lamb",
    "hamster", "bear",
)  # fmt: skip

MORALS = (
    "{h} learned that a friend makes every problem smaller.",
    "{h} learned that it is good to ask for help.",
    "From that day on, {h} and {f} were best friends.",
    "{h} thanked {f} again, and they laughed together all the way home.",
    "That night {h} fell asleep with a big smile.",
    "And whenever {h} saw {f}, they both remembered that day.",
    "{h} went home tired and happy, and told everyone about {f}.",
    "It was the best day that {h} had ever had.",
    "{h} and {f} promised to meet again the next day, and they did.",
    "After that, {h} was never lonely again, because {f} was always near.",
    "And so {h} and {f} lived happily, and they shared many more days like this one.",
    "When the stars came out, {h} and {f} were still talking about it.",
)
