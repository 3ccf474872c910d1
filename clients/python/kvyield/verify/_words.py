"""Ordinary words for prompts: common in every tokenizer, without digits, so that a number stands out."""

from __future__ import annotations

_WORDS = """
    able above across after again air almost along already although always among animal answer apple area around
    arrive autumn away back bank base beach bear beautiful because become bed before begin behind believe below
    beside better between beyond bird black blue boat body book both bottle bottom branch bread break bridge
    bright bring broad brown build busy butter call calm camp capital careful carry cat catch centre certain
    chair change cheap child choose church city clean clear climb clock close cloth cloud coast coat coffee cold
    colour common cook copper corner cotton country cousin cover cow cross crowd cup dance dark daughter dawn
    day deep desk different dinner direct dish distant doctor dog door down draw dream dress drink drive dry
    dust each early earth east easy eat edge egg empty end engine enough evening every example eye face fair
    fall family famous farm fast father feather few field fill final find fine finger fire first fish flat floor
    flower fly follow food foot forest forget fork fox free fresh friend from front fruit full garden gate
    gather gentle gift girl glad glass go gold good grass great green grey ground group grow hall hand happy
    harbour hard hat hay head hear heart heavy help here high hill hold home honest hope horse hot hour house
    hundred ice idea inside island jacket join journey jump keep kettle kind kitchen knee know ladder lake lamp
    land language large last late laugh leaf learn leather leave left lemon letter level library light like line
    lion listen little live long look loud low lucky lunch machine make many map market matter meal mean measure
    meet metal middle milk mind minute mirror moment money month moon more morning mother mountain mouse mouth
    move much music name narrow near neck needle never new next night noise north nose notice number ocean offer
    often oil old once only open orange
"""

VOCABULARY: tuple[str, ...] = tuple(_WORDS.split())
