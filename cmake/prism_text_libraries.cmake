# Libraries that read and cut text: found by pkg-config, as the imported targets PkgConfig::NAME.
find_package(PkgConfig REQUIRED)
pkg_check_modules(zstd REQUIRED IMPORTED_TARGET libzstd>=1.4)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8>=10.40)  # \p{White_Space}
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc>=2.5)
pkg_check_modules(sentencepiece REQUIRED IMPORTED_TARGET sentencepiece>=0.1.97)
# -DUTF8PROC_EXPORTS, which its .pc file adds, is for building the library; here it would only change every command line.
set_property(TARGET PkgConfig::utf8proc PROPERTY INTERFACE_COMPILE_OPTIONS "")
