//! A flight recorder is one line in a run, and the report reads both.

use burn_amp_report::{FlightRecorder, probed, report};

use crate::support::*;

/// A net that is probed.
#[derive(Module, Debug)]
struct Probed {
    net: Net,
}

impl Own for Probed {
    fn output(&self, batch: Batch) -> ClassificationOutput {
        let forward = |x| probed("net", x, |x| self.net.forward(x));
        let logits = autocast(batch.features.clone(), forward);
        self.net.output(logits, batch)
    }
}

#[test]
fn one_line_records_a_learner_and_the_report_reads_both() {
    let (amp, folder) = (MixedPrecision::f16(), temp_dir());
    let recorder = FlightRecorder::new(folder.path(), &amp).unwrap();
    let own = Probed { net: net() };
    let learner = amp.learner(Model { own }, sgd(&amp), lr());
    Run::of(4).train(&folder, &amp, learner).finished();

    let flight: Value = json(recorder.write().unwrap().with_extension("json"));
    assert_eq!(flight["step"], 24);
    let steps = flight["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 21);
    for step in steps {
        // Validation passes the probe too, and has no gradients.
        assert_eq!(step["probes"].as_array().unwrap().len(), 1);
        assert_eq!(step["probes"][0]["name"], "net");
    }

    let page = folder.path().join("report.html");
    report(&[folder.path()], &page).unwrap();
    let page = fs::read_to_string(page).unwrap();
    says(&page, ["Train Loss", "Valid Loss", "Loss Scale"]);
    says(&page, ["Gradient Norm", "Zero Gradients", "Step Time"]);
    says(&page, ["This is a run without skips"]);
}
