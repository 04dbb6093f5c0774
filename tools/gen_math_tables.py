"""Generate disc_tf/codegen/cpu/math_tables.py: near-minimax polynomials and split constants (needs mpmath).

    python tools/gen_math_tables.py > disc_tf/codegen/cpu/math_tables.py

Each polynomial is the shortest Chebyshev interpolant whose error, in the function's own terms, is below the
tolerance of the type.
"""

import struct

from mpmath import mp, mpf

mp.prec = 300

LIM_R = mp.log(2) / 2 + mpf("0.001")


def f32(x):
    return struct.unpack("<f", struct.pack("<f", float(x)))[0]


def guard0(f, limit):
    """f with its limit about 0 (where the formula is 0/0)."""
    return lambda x: limit if abs(x) < mpf("1e-24") else f(x)


def root(f):
    """A function of z = x*x from one of x."""
    return lambda z: f(mp.sqrt(z))


def log_series(z):
    s = mp.sqrt(z)
    return (mp.log((1 + s) / (1 - s)) / s - 2) / z


def lgamma_factor(u):
    w = u - mpf("0.25")
    return (mp.loggamma(2 + w) / w) if abs(w) > mpf("1e-24") else 1 - mp.euler


def digamma_factor(u):
    x = u + mpf("1.75")
    return mp.digamma(x) / (x - DIGAMMA_ROOT) if abs(x - DIGAMMA_ROOT) > mpf("1e-24") else mp.polygamma(1, DIGAMMA_ROOT)


def erfcx_scaled(k):
    def g(q):
        a = k * (1 + q) / (1 - q)
        return (1 + 2 * a) * mp.exp(a * a) * mp.erfc(a)
    return g


DIGAMMA_ROOT = mp.findroot(mp.digamma, mpf("1.4616321449683623"))

# name: (function, interval, weight of the polynomial's absolute error in the result's relative error)
ERFC_K = {"f32": mpf(2), "f64": mpf(4)}
ERFC_MAX = {"f32": mpf("10.1"), "f64": mpf("26.8")}
#: from here on erf is 1 in f32
ERF_ONE = mpf("3.95")
#: from here on tanh is taken from the exponential: it is 1/2
TANH_FAR = mp.log(3) / 2


def specs(kind):
    k = ERFC_K[kind]
    t = mp.tan(mp.pi / 8)
    return {
        "EXP": (guard0(lambda r: (mp.exp(r) - 1 - r) / r**2, mpf(1) / 2), (-LIM_R, LIM_R), mpf("0.12")),
        "LOG": (guard0(log_series, mpf(2) / 3), (mpf(0), mpf("0.0296")), mpf("0.03")),
        "SIN": (guard0(root(lambda r: (mp.sin(r) - r) / r**3), -mpf(1) / 6), (mpf(0), mpf("0.617")), mpf("0.7")),
        "COS": (guard0(root(lambda r: (mp.cos(r) - 1 + r**2 / 2) / r**4), mpf(1) / 24), (mpf(0), mpf("0.617")),
                mpf("0.5")),
        "ATAN": (guard0(root(lambda x: (mp.atan(x) - x) / x**3), -mpf(1) / 3), (mpf(0), t * t + mpf("0.001")),
                 mpf("0.17")),
        "ASIN": (guard0(root(lambda x: (mp.asin(x) - x) / x**3), mpf(1) / 6), (mpf(0), mpf("0.2501")), mpf("0.25")),
        "ERF": (guard0(root(lambda x: mp.erf(x) / x - 1), 2 / mp.sqrt(mp.pi) - 1), (mpf(0), mpf("1.0")), mpf(1)),
        "ERF_HALF": (guard0(root(lambda x: mp.erf(x) / x - 1), 2 / mp.sqrt(mp.pi) - 1), (mpf(0), mpf("0.2501")), mpf(1) / 2),
        **({"LOG_ERFC": (lambda a: mp.log(mp.erfc(a)), (mpf(1), ERF_ONE), mp.erfc(1))} if kind == "f32" else {}),
        "ERFCX": (erfcx_scaled(k), ((mpf("0.499") - k) / (mpf("0.499") + k), (ERFC_MAX[kind] - k) / (ERFC_MAX[kind] + k)), mpf(1)),
        "SINH": (guard0(root(lambda x: (mp.sinh(x) - x) / x**3), mpf(1) / 6), (mpf(0), mpf("1.001")), mpf(1)),
        # lgamma(2 + w) / w and digamma(2 + w) / (w - root) for 2 + w from 5/4 to 9/4, in w + 1/4
        **({"LGAMMA": (lgamma_factor, (mpf("-0.5"), mpf("0.5")), mpf("2.2")),
            "DIGAMMA": (digamma_factor, (mpf("-0.5"), mpf("0.5")), mpf("1.1"))} if kind == "f64" else {}),
        # What tanh takes 2 / (e^2h + 1) from, at most 1/2 at and above TANH_FAR: (e^2h - 1) / 2 = h + h^2 (...)
        "TANH_EXP": (guard0(lambda h: (mp.exp(2 * h) - 1 - 2 * h) / (2 * h**2), mpf(1)), (-LIM_R / 2, LIM_R / 2), mpf("0.03")),
        "TANH": (guard0(root(lambda x: (mp.tanh(x) - x) / x**3), -mpf(1) / 3), (mpf(0), TANH_FAR**2), mpf("0.33")),
    }


def fit(f, interval, tolerance):
    for n in range(2, 40):
        coefficients, error = mp.chebyfit(f, list(interval), n, error=True)
        if error < tolerance:
            return coefficients
    raise SystemExit("no polynomial is good enough")


def bits(x, n, down=True):
    """x cut to n significant bits."""
    m, e = mp.frexp(x)
    return mp.ldexp(mp.floor(mp.ldexp(m, n)), int(e) - n)


def main():
    print('"""Coefficients for cpu/math.py. Written by tools/gen_math_tables.py: do not edit."""\n')
    for kind, tol, cast in (("f32", mpf(2) ** -27, f32), ("f64", mpf(2) ** -57, float)):
        print(f"{kind.upper()} = {{")
        for name, (f, interval, weight) in specs(kind).items():
            print(f'    "{name}": (')
            for c in fit(f, interval, tol / weight):
                print(f"        {cast(c)!r},")
            print("    ),")
        print("}\n")
    print(f"ERFC_K = {{'f32': {float(ERFC_K['f32'])!r}, 'f64': {float(ERFC_K['f64'])!r}}}".replace("'", '"'))
    root = bits(DIGAMMA_ROOT, 53)
    print(f"DIGAMMA_ROOT = ({float(root)!r}, {float(DIGAMMA_ROOT - root)!r})")
    print(f"TANH_FAR = {float(TANH_FAR)!r}")
    print(f"ERF_ONE = {float(ERF_ONE)!r}")
    print(f"ERFC_MAX = {{'f32': {float(ERFC_MAX['f32'])!r}, 'f64': {float(ERFC_MAX['f64'])!r}}}".replace("'", '"'))
    print("\n# pi/2 in three parts of 33, 33 and 53 bits (products with integers below 2**20 are exact)")
    p1 = bits(mp.pi / 2, 33)
    p2 = bits(mp.pi / 2 - p1, 33)
    p3 = mp.pi / 2 - p1 - p2
    print(f"PIO2 = ({float(p1)!r}, {float(p2)!r}, {float(p3)!r})")
    print("\n# 2/pi in 32-bit words, most significant first; word 0 is the integer part (0), then 2**-32, ...")
    words = [0] + [int(mp.floor(mp.ldexp(2 / mp.pi, 32 * i))) & 0xFFFFFFFF for i in range(1, 40)]
    mp.prec = 2000
    words = [0, 0, 0] + [int(mp.floor(mp.ldexp(2 / mp.pi, 32 * i))) & 0xFFFFFFFF for i in range(1, 42)]
    print("TWO_OVER_PI = (")
    for i in range(0, len(words), 8):
        print("    " + ", ".join(f"0x{w:08X}" for w in words[i:i + 8]) + ",")
    print(")")
    mp.prec = 300
    print("\n# log(2), pi/2 and so on as high part + low part")
    for name, value in (("LN2", mp.log(2)), ("TWO_THIRDS", mpf(2) / 3), ("PI", mp.pi), ("PI_2", mp.pi / 2), ("PI_4", mp.pi / 4)):
        hi64 = float(bits(value, 42)) if name == "LN2" else float(value)
        hi32 = f32(bits(value, 12)) if name == "LN2" else f32(value)
        print(f"{name} = {{\"f32\": ({hi32!r}, {f32(value - mpf(hi32))!r}), \"f64\": ({hi64!r}, {float(value - mpf(hi64))!r})}}")


main()
