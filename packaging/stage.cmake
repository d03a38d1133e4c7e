# SPDX-License-Identifier: Apache-2.0
# cpack runs this when the files of a package have been installed into its folder, and before they are packed: adds the
# systemd unit and, for Debian, settings in /etc, the licence and the changelog in their places, and compression.
set(root ${CPACK_TEMPORARY_DIRECTORY})
set(systemd ${CPACK_QUIRE_SOURCE_DIR}/examples/systemd)

# The instructions at its head are about an installation by hand. The binary is where the package puts it.
function(stage_unit folder binary)
  file(READ ${systemd}/quire.service unit)
  string(REGEX REPLACE "^.*\n\\[Unit\\]" "[Unit]" unit "${unit}")
  string(REPLACE "/usr/local/bin/quire" "${binary}" unit "${unit}")
  string(REPLACE "[Unit]" "[Unit]\nDocumentation=man:quire-serve(1)" unit "${unit}")
  file(WRITE ${folder}/quire.service "${unit}")
endfunction()

# The licence of CLI11, whose headers become part of the binary, must go with it.
set(cli11 /usr/share/doc/libcli11-dev/copyright)

if(CPACK_GENERATOR STREQUAL "TGZ")
  # To be unpacked in /usr/local.
  stage_unit(${root}/lib/systemd/system /usr/local/bin/quire)
  if(EXISTS ${cli11})
    configure_file(${cli11} ${root}/share/doc/quire/LICENSE.CLI11 COPYONLY)
  endif()
endif()

if(CPACK_GENERATOR STREQUAL "DEB")
  stage_unit(${root}/lib/systemd/system /usr/bin/quire)
  file(MAKE_DIRECTORY ${root}/etc/quire)
  file(COPY ${systemd}/quire.env DESTINATION ${root}/etc/quire FILE_PERMISSIONS OWNER_READ OWNER_WRITE)

  set(doc ${root}/usr/share/doc/quire)
  file(REMOVE ${doc}/LICENSE)
  file(READ ${CPACK_QUIRE_SOURCE_DIR}/packaging/debian/copyright copyright)
  if(EXISTS ${cli11})
    file(READ ${cli11} cli11_copyright)
    # Its paragraphs about the packaging itself are about another package.
    string(REGEX MATCH "License: BSD-3-[Cc]lause\n( [^\n]*\n)+" cli11_licence "${cli11_copyright}")
    string(REGEX MATCH "Copyright: [^\n]*\n( +[^\n]*\n)*" cli11_holders "${cli11_copyright}")
    string(APPEND copyright "\nFiles: (headers of CLI11, in the binary)\n${cli11_holders}${cli11_licence}")
  endif()
  file(WRITE ${doc}/copyright "${copyright}")
  string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
  file(WRITE ${doc}/changelog "quire (${CPACK_PACKAGE_VERSION}) unstable; urgency=medium\n\n  * See CHANGELOG.md.gz.\n\n"
       " -- ${CPACK_PACKAGE_CONTACT}  ${date}\n")
  file(MAKE_DIRECTORY ${root}/usr/share/zsh)
  file(RENAME ${root}/usr/share/zsh/site-functions ${root}/usr/share/zsh/vendor-completions)
  file(GLOB compressed ${root}/usr/share/man/man1/*.1)
  execute_process(COMMAND gzip -9 -n ${compressed} ${doc}/changelog ${doc}/CHANGELOG.md COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND chmod -R u=rwX,go=rX ${root}/usr ${root}/lib COMMAND_ERROR_IS_FATAL ANY)
endif()
