"""Attacks in C++20: on the compiler, and by programs that no interpreter holds back."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from sandbox_cases import FAILS, SHORT, SMALL, TIME, Attack

compiled = partial(Attack, language="cpp", limits=SMALL)
REFUSED = ("not_compiled",)

COMPILER = (
    compiled(name="include-a-secret", goal="see a file in the compiler's messages", ends=REFUSED,
             source='#include "@secret@"\n#include "/etc/shadow"\nint main() {}\n'),
    compiled(name="include-standard-input", goal="make the compiler wait", ends=(*REFUSED, "answered"),
             source='#include "/dev/stdin"\n#include "/dev/tty"\nint main() { return 0; }\n'),
    compiled(name="include-the-environment", goal="compile files around it into the program", ends=(*REFUSED, "answered"),
             source="""
             #include <cstdio>
             extern "C" const char text[];
             asm(".data\\ntext: .incbin \\"@secret@\\"\\n.byte 0\\n");
             int main() { puts(text); }
             """),
    compiled(name="include-itself", goal="a text without an end", ends=REFUSED,
             source="#include __FILE__\n#include __FILE__\nint main() {}\n"),
    compiled(name="nested-macros", goal="two million tokens from eight lines", ends=(*REFUSED, "answered"), source="""
             #include <cstdio>
             #define A 1+1+1+1+1+1+1+1
             #define B A+A+A+A+A+A+A+A
             #define C B+B+B+B+B+B+B+B
             #define D C+C+C+C+C+C+C+C
             #define E D+D+D+D+D+D+D+D
             #define F E+E+E+E+E+E+E+E
             int main() { static const int v[] = {F, F, F, F}; printf("%d\\n", v[0]); }
             """),
    compiled(name="tree-of-templates", goal="a quarter of a million instantiations", ends=(*REFUSED, "answered"), source="""
             #include <cstdio>
             template <int D, long I> struct Tree {
                 static const long value = Tree<D - 1, I * 2>::value + Tree<D - 1, I * 2 + 1>::value;
             };
             template <long I> struct Tree<0, I> { static const long value = 1; };
             int main() { printf("%ld\\n", Tree<17, 1>::value); }
             """),
    compiled(name="endless-constant", goal="compute for ever while compiling", ends=REFUSED, source="""
             constexpr long f(long n) { long s = 0; for (long i = 0; i < n; ++i) s += i; return s; }
             constexpr long value = f(1L << 60);
             int main() { return value; }
             """),
    compiled(name="huge-binary", goal="a program of gigabytes", ends=(*REFUSED, "limit memory"), source="""
             int table[1 << 28] = {1};
             int main() { return table[5]; }
             """),
    compiled(name="no-program", goal="compile to nothing", ends=REFUSED, source=""),
)

PROGRAMS = (
    compiled(name="busy-loop", goal="spin for ever", ends=TIME,
             source="volatile unsigned long n;\nint main() { for (;;) n = n + 1; }\n"),
    compiled(limits=SHORT, name="two-hundred-forks", goal="children that sleep", ends=TIME, source="""
             #include <unistd.h>
             int main() { for (int i = 0; i < 200; ++i) { pid_t p = fork(); if (p == 0) { sleep(30); _exit(0); } } sleep(30); }
             """),
    compiled(name="two-gigabytes", goal="map and touch memory", ends=("limit memory",), source="""
             #include <cstdio>
             #include <sys/mman.h>
             int main() {
                 const size_t step = 16u << 20;
                 for (int i = 0; i < 128; ++i) {
                     char* p = (char*)mmap(nullptr, step, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                     if (p == MAP_FAILED) { puts("DENIED"); return 0; }
                     for (size_t k = 0; k < step; k += 4096) p[k] = 1;
                 }
                 puts("ESCAPED");
             }
             """),
    compiled(name="stack-overflow", goal="recurse for ever", ends=("signal", "limit memory"), source="""
             #include <cstdio>
             long f(volatile long* p) { volatile long x[64]; x[0] = *p + 1; return f(x) + x[0]; }
             int main() { long z = 0; printf("%ld\\n", f(&z)); }
             """),
    compiled(name="long-file", goal="a file beyond the limit", ends=("limit file_size",), source="""
             #include <cstdio>
             static char block[1 << 20];
             int main() { FILE* f = fopen("f", "wb"); for (int i = 0; i < 64; ++i) fwrite(block, 1, sizeof block, f); }
             """),
    compiled(name="own-binary", goal="search its own binary for the harness", ends=("denied",), source="""
             #include <cstdio>
             #include <fstream>
             #include <iterator>
             #include <string>
             int main() {
                 std::ifstream f("/proc/self/exe", std::ios::binary);
                 std::string s((std::istreambuf_iterator<char>(f)), {});
                 std::string key = std::string("expected") + "_sum";
                 puts(s.size() < 1000 || s.find(key) != std::string::npos ? "ESCAPED" : "DENIED");
             }
             """),
    compiled(name="shell", goal="print files around it", ends=("answered", "exit_status"), source="""
             #include <cstdlib>
             int main() { return std::system("cat @secret@ ../*expected* ../tests/* tests/* /tmp/*.txt 2>/dev/null"); }
             """),
    compiled(name="leaves-before-main", goal="exit with 0 before main", ends=("answered",), source="""
             #include <unistd.h>
             __attribute__((constructor)) static void early() { _exit(0); }
             int main() { return 1; }
             """),
    compiled(name="old-system-calls", goal="call the kernel through its 32-bit door", ends=("signal", "denied"),
             source="""
             #include <cstdio>
             int main() {
             #if defined(__x86_64__)
                 long result = 20;
                 asm volatile("int $0x80" : "+a"(result));
                 puts(result > 0 ? "ESCAPED" : "DENIED");
             #else
                 puts("DENIED");
             #endif
             }
             """),
    compiled(name="other-numbers", goal="the same with the numbers of another calling convention", ends=("denied",), source="""
             #include <cstdio>
             #include <unistd.h>
             int main() { puts(syscall(0x40000000 | 39) > 0 ? "ESCAPED" : "DENIED"); }
             """),
    compiled(name="signal-handler", goal="turn the limit's signal into a loop", ends=TIME, source="""
             #include <csignal>
             int main() { for (int i = 1; i < 65; ++i) signal(i, [](int) {}); for (volatile long n = 0;; n = n + 1) {} }
             """),
    compiled(name="divides-by-zero", goal="crash", ends=FAILS,
             source="int main(int c, char**) { volatile int z = c - 1, one = 1; z = one / z; return z; }"),
)

HONEST = tuple(replace(case, honest=True) for case in (
    compiled(name="honest-cpp", goal="none: the usual header", ends=("answered",), source="""
             #include <bits/stdc++.h>
             using namespace std;
             int main() { ios::sync_with_stdio(false); cin.tie(nullptr); long long a, b; cin >> a >> b; cout << a + b << "\\n"; }
             """),
    compiled(name="honest-cpp20", goal="none: what is new in C++20", ends=("answered",), source="""
             #include <concepts>
             #include <iostream>
             #include <numeric>
             #include <ranges>
             #include <vector>
             template <std::integral T> T add(std::vector<T> const& all) { return std::accumulate(all.begin(), all.end(), T{}); }
             int main() { std::vector<long> all(2); for (auto& x : all) std::cin >> x; std::cout << add(all) << std::endl; }
             """),
))
