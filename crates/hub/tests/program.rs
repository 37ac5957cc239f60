//! `foredraft-get` against the server of tests/hub, with its faults.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests may panic")]

use std::path::Path;
use std::process::Command;

#[test]
fn downloads_survive_the_faults_of_servers_and_disks() {
    let check = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/hub/check.py");
    let output = Command::new("python3").arg(check).arg(env!("CARGO_BIN_EXE_foredraft-get")).output();
    let output = output.expect("python3 is installed");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
}
