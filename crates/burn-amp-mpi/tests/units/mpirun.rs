use std::process::Command;

/// A job of so many ranks on this machine, which ends after so many seconds. Its program comes next.
pub fn mpirun(ranks: usize, seconds: u32) -> Command {
    let mut command = Command::new("mpirun");
    command.args([
        "--allow-run-as-root",
        "--oversubscribe",
        "--bind-to",
        "none",
    ]);
    command.args(["--timeout", &seconds.to_string(), "-n", &ranks.to_string()]);
    command
}
