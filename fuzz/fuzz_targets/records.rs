#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| burn_amp_tests::readers::records(data));
