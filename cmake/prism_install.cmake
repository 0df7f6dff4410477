# cmake --install: headers, libraries, the CLI and a package file for find_package(prism).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set_target_properties(prism prism_cli PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR};${TORCH_DIR}/lib")
install(TARGETS prism EXPORT prism_targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS prism_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS prism_kernels ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY python/prism DESTINATION ${CMAKE_INSTALL_DATADIR}/prism/python  # for import prism and prism report
  FILES_MATCHING PATTERN "*.py")
install(DIRECTORY include/prism DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT prism_targets NAMESPACE prism:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/prism)
configure_package_config_file(cmake/prism-config.cmake.in ${CMAKE_BINARY_DIR}/prism-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/prism)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/prism-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/prism-config.cmake ${CMAKE_BINARY_DIR}/prism-config-version.cmake
  cmake/prism_torch.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/prism)
