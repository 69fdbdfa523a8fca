"""British spellings as American ones: families of words with their endings, and a table of the rest."""

from __future__ import annotations

import functools
import itertools

# colour: -our, of which the endings below all lose the u.
_OUR = """arbour ardour armour behaviour candour clamour clangour colour demeanour
discolour dishonour dolour enamour endeavour favour disfavour fervour flavour glamour harbour honour
humour labour belabour misbehaviour misdemeanour neighbour odour parlour rancour rigour rumour saviour
savour splendour succour tumour valour vapour vigour"""
_OUR_ENDINGS = """s ed ing er ers able ably ite ites ful fully less ly hood hoods ist ists ism
y ies ally al man men eds ist's"""
# realise: -ise, -isation.
_ISE = """actual agon alphabet american amort anaesthet anal antagon apolog appet atom
author autom baptism bapt brutal bureaucrat canon capital caramel categor cauter central character civil
collectiv colon commercial computer conceptual context contextual criminal critic crystall custom
decentral dehuman democrat demonet demoral deodor destabil digit diplomat disorgan dramat econom emot
emphas energ equal etern euphem evangel external extempor factor familiar fantas fertil fictional final
formal fossil fratern function galvan general ghetto glamor global harmon homogen hospital human hybrid
hypnot hypothes ideal idol immobil immort immortal immun improv individual industrial initial
institutional intellectual internal international ion ital jeopard legal legitim lexical liber liberal
lion local magnet marginal material maxim mechan memor mesmer metabol militar minim mobil modern monopol
moral motor national natural neutral normal nuclear optim organ ostrac overemphas oxid particular patron
pedestrian penal personal pluralis polar polit popular pressur priorit privat professional proselyt
public pulver radical rational real recogn revital revolution roman romantic sanit satir scandal scrutin
secular sensational sensit serial sexual social solemn special stabil standard steril stigmat subsid
summar symbol sympath synchron synthes system tantal tempor terror theor tranquil traumat trivial tyrann
unionis unstabil urban util vandal vapor verbal victim visual vital vocal vulcan vulgar western winter
woman reorgan underutil crystal accessor acclimat aggrand anglic annual bastard bowdler cannibal canal
carbon circular compartmental decriminal demilitar demobil demon denational depersonal deput desensit
editorial empath epitom eulog exorc femin italic item liquid memorial miniatur moistur pasteur
passiv philosoph plagiar politic propagand random regular rhapsod ritual sentimental sermon signal sodom
systemat tender tranquill transistor unauthor uncivil union unorgan unrecogn"""
_ISE_ENDINGS = "ise ises ised ising iser isers isation isations isational isable"
# analyse: -yse.
_YSE = "anal paral catal breathal psychoanal electrol hydrol dial"
_YSE_ENDINGS = "yse ysed yser ysers ysing"
# travelled: one l after an unstressed vowel.
_DOUBLE_L = """apparel barrel bevel cancel carol cavil channel chisel counsel cudgel dial
dishevel drivel duel enamel equal fuel funnel gambol gravel grovel gruel imperil initial jewel kennel
label laurel level libel marshal marvel medal metal model panel parcel pedal pencil peril pistol pommel
quarrel ravel remodel revel rival rowel shovel shrivel signal snivel spiral squirrel stencil swivel
symbol tassel tinsel total towel tranquil travel trowel tunnel unravel victual weasel yodel unequal
uncancel fluor untrammel trammel"""
_DOUBLE_L_ENDINGS = "led ling ler lers lings lery"
_RE = """calibre centre epicentre fibre goitre litre kilolitre millilitre centilitre
lustre manoeuvre meagre metre kilometre centimetre millimetre mitre nitre ochre reconnoitre sabre
saltpetre sceptre sepulchre sombre spectre theatre amphitheatre titre"""
_AE = """anaem anaesthe archaeolog gynaecolog haem haemoglobin haemophil haemorrh
leukaem orthopaed paed paediatr paedophil palaeo palaeontolog septicaem toxaem bacteraem encyclopaed
mediaev primaev caesar faec haematolog paederast"""
_OE = """oedema oesophag oestrogen foetus foetal foetid diarrhoea homoeopath manoeuvr
amoeb gonorrhoea oenolog coelom subpoen"""
_CLASSICAL_ENDINGS = """a as ia ias ic ics ical ically ist ists y ies ian ians e es s tic tics tise
tised tize tist tists iac iacs iacal age ages aged aging oid oids oids al ally us uses l d dia dias dic
dics tricians trician tric trics e ed ing ings ers able ability ontologist ontology olithic lithic
ological ologist ologists ologically ologic ular gia"""
_REST = """aeroplane:airplane aeroplanes:airplanes aluminium:aluminum analogue:analog analogues:analogs
behove:behoove behoves:behooves bannister:banister bannisters:banisters catalogue:catalog
catalogues:catalogs catalogued:cataloged cataloguing:cataloging cheque:check cheques:checks
chequered:checkered chilli:chili cosy:cozy cosier:cozier cosily:cozily defence:defense defences:defenses
defenceless:defenseless dialogue:dialog dialogues:dialogs monologue:monolog monologues:monologs
draught:draft draughts:drafts draughty:drafty enrol:enroll enrols:enrolls enrolment:enrollment
enrolments:enrollments enthral:enthrall fulfil:fulfill fulfils:fulfills fulfilment:fulfillment
instal:install instalment:installment instalments:installments distil:distill distils:distills
skilful:skillful skilfully:skillfully wilful:willful wilfully:willfully grey:gray greys:grays
greyed:grayed greying:graying greyish:grayish greyness:grayness gaol:jail gaols:jails gaoled:jailed
jewellery:jewelry judgement:judgment judgements:judgments acknowledgement:acknowledgment
acknowledgements:acknowledgments kerb:curb kerbs:curbs licence:license licences:licenses licenced:licensed
mould:mold moulds:molds moulded:molded moulding:molding mouldings:moldings mouldy:moldy moult:molt
moults:molts moulted:molted moulting:molting moustache:mustache moustaches:mustaches moustached:mustached
offence:offense offences:offenses pretence:pretense pretences:pretenses plough:plow ploughs:plows
ploughed:plowed ploughing:plowing practise:practice practised:practiced practises:practices
practising:practicing programme:program programmes:programs pyjamas:pajamas pyjama:pajama sceptic:skeptic
sceptics:skeptics sceptical:skeptical sceptically:skeptically scepticism:skepticism smoulder:smolder
smouldered:smoldered smouldering:smoldering storey:story storeys:stories sulphur:sulfur sulphate:sulfate
sulphates:sulfates sulphide:sulfide sulphuric:sulfuric sulphurous:sulfurous syphon:siphon syphons:siphons
syphoned:siphoned tyre:tire tyres:tires woollen:woolen woollens:woolens woolly:wooly worshipped:worshiped
worshipping:worshiping worshipper:worshiper worshippers:worshipers kidnapped:kidnaped kidnapping:kidnaping
kidnapper:kidnaper kidnappers:kidnapers counsellor:counselor counsellors:counselors councillor:councilor
councillors:councilors marvellous:marvelous marvellously:marvelously yoghurt:yogurt yoghurts:yogurts
mum:mom mums:moms ageing:aging likeable:likable sizeable:sizable saleable:salable loveable:lovable
colourize:colorize speciality:specialty specialities:specialties omelette:omelet omelettes:omelets
snowplough:snowplow gramme:gram grammes:grams kilogramme:kilogram kilogrammes:kilograms artefact:artifact
artefacts:artifacts furore:furor cypher:cipher cyphers:ciphers discs:disks favouritism:favoritism
glycerine:glycerin inflexion:inflection connexion:connection manoeuvre:maneuver manoeuvres:maneuvers
manoeuvred:maneuvered manoeuvring:maneuvering manoeuvrable:maneuverable paralyses:paralyzes
analyses:analyzes phoney:phony pedlar:peddler pedlars:peddlers sledges:sleds travelogue:travelog
travelogues:travelogs tranquillity:tranquility unfavourable:unfavorable unfavourably:unfavorably
waggon:wagon waggons:wagons watercolour:watercolor watercolours:watercolors multicoloured:multicolored
rumbustious:rambunctious orientated:oriented orientate:orient disorientated:disoriented centring:centering
theatregoer:theatergoer theatregoers:theatergoers lustreless:lusterless meagreness:meagerness
manoeuvrability:maneuverability colouration:coloration discolouration:discoloration aesthetic:esthetic
aesthetics:esthetics aesthetically:esthetically anaesthesia:anesthesia cauldron:caldron"""


def to_american(word: str) -> str:
    """The American spelling of a lower-case word, or the word itself."""
    return _table().get(word, word)


@functools.cache
def _table() -> dict[str, str]:
    table: dict[str, str] = {}

    def add(stems: str, endings: str, british: str, american: str, strip: str = "") -> None:
        for stem, ending in itertools.product(stems.split(), ["", *endings.split()]):
            word = stem.removesuffix(strip) + ending
            if british in word:
                head, _, tail = word.rpartition(british)
                table[word] = head + american + tail

    add(_OUR, _OUR_ENDINGS, "our", "or")
    add(_ISE, _ISE_ENDINGS, "is", "iz")
    add(_YSE, _YSE_ENDINGS, "ys", "yz")
    add(_DOUBLE_L, _DOUBLE_L_ENDINGS, "ll", "l")
    add(_RE, "s", "re", "er")
    table |= {word.removesuffix("re") + "red": word.removesuffix("re") + "ered" for word in _RE.split()}
    for stems, british, american in ((_AE, "ae", "e"), (_OE, "oe", "e")):
        add(stems, _CLASSICAL_ENDINGS, british, american)
    table |= dict(pair.split(":") for pair in _REST.split())
    return {british: american for british, american in table.items() if british != american}
