//! The program in one process, in two and in three; a rank that is killed; a run that goes on with another number of ranks.

#[path = "../../../kernels-cubecl/tests/backend/skipped.rs"]
mod skipped;

#[cfg(feature = "mpi")]
#[path = "../../../crates/burn-amp-mpi/tests/units/mpirun.rs"]
mod mpirun;

#[cfg(not(feature = "mpi"))]
#[test]
fn ranks() {
    skipped::skipped("it needs the feature `mpi`, with an MPI library");
}

#[cfg(feature = "mpi")]
mod ranks {
    use std::path::Path;
    use std::process::{Command, Output, Stdio};
    use std::time::{Duration, Instant};
    use std::{fs, thread};

    /// Says so where there is no MPI.
    fn is_missing() -> bool {
        let is_missing = Command::new("mpirun").arg("--version").output().is_err();
        if is_missing {
            super::skipped::skipped("there is no `mpirun`");
        }
        is_missing
    }

    fn mpirun(ranks: usize, args: &[&str]) -> Command {
        let mut command = super::mpirun::mpirun(ranks, 120);
        command.arg(env!("CARGO_BIN_EXE_mpi")).args(args);
        command
    }

    /// What it prints and the accuracy in it.
    fn accuracy(output: &Output) -> f64 {
        let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        assert!(output.status.success(), "{out}{err}");
        assert!(out.contains("are the same, bit for bit"), "{out}{err}");
        let (_, rest) = out.split_once("test accuracy ").unwrap();
        rest.split_once(' ').unwrap().0.parse().unwrap()
    }

    #[test]
    fn all_numbers_of_ranks_come_to_one_accuracy() {
        if is_missing() {
            return;
        }
        let [one, two, three] =
            [1, 2, 3].map(|ranks| accuracy(&mpirun(ranks, &[]).output().unwrap()));
        assert!(one > 95.0, "{one}");
        for more in [two, three] {
            assert!((one - more).abs() <= 1.0, "{one} {two} {three}");
        }
    }

    #[test]
    fn a_rank_is_killed_and_the_run_goes_on_with_another_number() {
        if is_missing() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("checkpoint");
        let path = file.to_str().unwrap();
        let mut command = mpirun(2, &["--epochs", "100000", "--checkpoint", path]);
        let job = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let start = Instant::now();
        while !file.exists() && start.elapsed() < Duration::from_secs(60) {
            thread::sleep(Duration::from_millis(50));
        }
        let victim = ranks_of(job.id()).pop().expect("two ranks");
        assert!(
            Command::new("kill")
                .args(["-9", &victim])
                .status()
                .unwrap()
                .success()
        );
        let killed = Instant::now();
        let output = job.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(killed.elapsed() < Duration::from_secs(10), "{said}");
        assert!(!output.status.success());
        assert!(
            said.contains("process rank 1 ") && said.contains("exited on signal 9"),
            "{said}"
        );

        let resumed = mpirun(3, &["--epochs", "300", "--resume", path])
            .output()
            .unwrap();
        assert!(accuracy(&resumed) > 90.0);
    }

    /// The processes that a job has started, by their numbers.
    fn ranks_of(job: u32) -> Vec<String> {
        let children = fs::read_to_string(format!("/proc/{job}/task/{job}/children")).unwrap();
        let children = children.split_whitespace().map(String::from);
        let is_rank = |id: &String| {
            let exe = fs::read_link(Path::new("/proc").join(id).join("exe"));
            exe.is_ok_and(|exe| exe.ends_with("mpi"))
        };
        children.filter(is_rank).collect()
    }
}
